"""Ctrl-C and SIGTERM: stop at a point where no finished work is lost."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Interrupted(BaseException):
    """A signal stops the run. `exit_code` is 128 plus the number of the signal."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.exit_code = 128 + signal_number


class StopSignals:
    """Raises Interrupted on the first SIGINT or SIGTERM: immediately, or when a protected section ends.

    A second signal raises immediately, even in a protected section.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._protected = False
        self._pending: int | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals inside the block; restores the previous handlers."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def protected(self, what: str) -> Iterator[None]:
        """Finish the block before the first signal takes effect; the message names `what`."""
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
            with suppress(RuntimeError):  # the signal interrupted another print
                self._say(f"stopping after {self._what}; the same signal again stops immediately")
            return
        raise Interrupted(signal_number)
