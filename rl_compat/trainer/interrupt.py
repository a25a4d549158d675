"""Ctrl-C, SIGTERM, a lost connection and a batch system's warning: stop at a point where no finished work is lost."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

BY_HAND = (signal.SIGINT, signal.SIGTERM)
"a second one stops immediately"
STOPPING = (
    *BY_HAND,
    signal.SIGHUP,  # the terminal or connection is gone; a shell and the kernel may both send it
    signal.SIGQUIT,
    signal.SIGUSR1,  # Slurm, LSF and Grid Engine, some time before they kill
    signal.SIGUSR2,
    signal.SIGXCPU,
)
"signals that end a process by default"


class Interrupted(BaseException):
    """A signal stops the run. `exit_code` is 128 plus the number of the signal."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.exit_code = 128 + signal_number


class StopSignals:
    """Raises Interrupted on the first signal of `STOPPING`: immediately, or when a protected section ends.

    A second SIGINT or SIGTERM raises immediately, even in a protected section; other further signals change nothing. A
    signal that is ignored when the run starts, such as SIGHUP under `nohup`, stays ignored.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._protected = False
        self._received: list[int] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals inside the block; restores the previous handlers."""
        before = {number: signal.getsignal(number) for number in STOPPING}
        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, self._handle)
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
        if self._received:
            raise Interrupted(self._received[0])

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        del frame
        again = signal_number in self._received and signal_number in BY_HAND
        self._received.append(signal_number)
        if again or (len(self._received) == 1 and not self._protected):
            raise Interrupted(signal_number)
        if len(self._received) == 1:
            with suppress(RuntimeError):  # the signal interrupted another print
                self._say(f"{signal.Signals(signal_number).name}: stopping after {self._what}")
