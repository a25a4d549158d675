"""Reporters of a run's progress: bars and lines on the command line, or nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Reporter(Protocol):
    """Receives the progress of a run for display."""

    def say(self, text: str) -> None:
        """Show one line."""
        ...

    def phase(self, name: str, *, done: int = 0, total: int = 0) -> None:
        """Show the current phase and its progress."""
        ...


class SilentReporter:
    """A reporter for library use and tests."""

    def say(self, text: str) -> None:
        del text

    def phase(self, name: str, *, done: int = 0, total: int = 0) -> None:
        del name, done, total


class Timer:
    """Measures the seconds of each phase of a step, and reports a phase that takes unusually long.

    A phase is reported after `patience_seconds`, or after three times its longest time so far if that is more.
    """

    def __init__(self, reporter: Reporter, *, patience_seconds: float = 120.0) -> None:
        self.seconds: dict[str, float] = {}
        self._reporter = reporter
        self._patience_seconds = patience_seconds
        self._longest: dict[str, float] = {}
        self._progress: dict[str, tuple[int, int]] = {}

    @contextmanager
    def __call__(self, phase: str, *, items: int = 0) -> Iterator[Callable[[int], None]]:
        """Time the block as `phase`; the block may report progress over `items`."""
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
    """Calls a function periodically until stopped."""

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
