"""Ctrl-C and SIGTERM: stop at a moment that loses nothing."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Interrupted(BaseException):
    """The user or the system asked the run to stop. `exit_code` is 128 plus the signal's number."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.exit_code = 128 + signal_number


class StopSignals:
    """Turns the first SIGINT or SIGTERM into Interrupted, at once or when a protected section ends.

    A second signal raises at once, wherever the run is.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._protected = False
        self._pending: int | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals inside the block; restores the handlers that were there before."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def protected(self, what: str) -> Iterator[None]:
        """Finish the block before the first signal takes effect; `what` is named to the user."""
        self._protected, self._what = True, what
        try:
            yield
        finally:
            self._protected = False
        if self._pending is not None:
            raise Interrupted(self._pending)

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        del frame
        first = self._pending is None
        self._pending = signal_number
        if first and self._protected:
            with suppress(RuntimeError):  # the signal came in the middle of another print
                self._say(f"stopping after {self._what}; the same signal again stops at once")
            return
        raise Interrupted(signal_number)
