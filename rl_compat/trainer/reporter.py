"""Where a run says what it does: the command line's bars and lines, or nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Reporter(Protocol):
    """Receives what a person watching a run wants to know."""

    def say(self, text: str) -> None:
        """One line worth reading."""
        ...

    def phase(self, name: str, *, done: int = 0, total: int = 0) -> None:
        """What the run is in now, and how far."""
        ...


class SilentReporter:
    """A reporter for library use and tests."""

    def say(self, text: str) -> None:
        del text

    def phase(self, name: str, *, done: int = 0, total: int = 0) -> None:
        del name, done, total


class Timer:
    """Seconds spent in each named phase of a step, with a line when one takes unusually long.

    A phase is unusual after `patience_seconds`, or three times its longest run so far where that is more.
    """

    def __init__(self, reporter: Reporter, *, patience_seconds: float = 120.0) -> None:
        self.seconds: dict[str, float] = {}
        self._reporter = reporter
        self._patience_seconds = patience_seconds
        self._longest: dict[str, float] = {}
        self._progress: dict[str, tuple[int, int]] = {}

    @contextmanager
    def __call__(self, phase: str, *, items: int = 0) -> Iterator[Callable[[int], None]]:
        """Time the block as `phase`; the block may report how many of its `items` are done."""
        patience = max(self._patience_seconds, 3 * self._longest.get(phase, 0.0))
        self._progress[phase] = (0, items)
        self._reporter.phase(phase, total=items)
        start = time.perf_counter()
        watch = _Watch(lambda: self._say_waiting(phase, start), patience)
        try:
            yield lambda done: self._advance(phase, done)
        finally:
            watch.stop()
            spent = time.perf_counter() - start
            self._longest[phase] = max(spent, self._longest.get(phase, 0.0))
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent

    def take(self) -> dict[str, float]:
        """The seconds by phase since the last call."""
        seconds, self.seconds = self.seconds, {}
        return seconds

    def _advance(self, phase: str, done: int) -> None:
        total = self._progress[phase][1]
        self._progress[phase] = (done, total)
        self._reporter.phase(phase, done=done, total=total)

    def _say_waiting(self, phase: str, start: float) -> None:
        done, total = self._progress[phase]
        items = f", {done} of {total} done" if total else ""
        self._reporter.say(f"still in `{phase}` after {time.perf_counter() - start:.0f} s{items}")


class _Watch:
    """Calls a function every so many seconds until stopped."""

    def __init__(self, call: Callable[[], None], seconds: float) -> None:
        self._call = call
        self._seconds = seconds
        self._stopped = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._call()
