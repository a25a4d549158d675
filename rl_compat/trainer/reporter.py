"""Reporters of a run's progress: bars and lines on the command line, or nothing."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rl_compat.distributed.local import taken
from rl_compat.tracking.timeline import Span

KEPT_SPANS = 10_000
"that a timer keeps if nobody takes them"


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
    Several threads may use it at the same time.
    """

    def __init__(self, reporter: Reporter, *, patience_seconds: float = 120.0) -> None:
        self.seconds: dict[str, float] = {}
        self._reporter = reporter
        self._patience_seconds = patience_seconds
        self._longest: dict[str, float] = {}
        self._lock = threading.Lock()
        self._spans: deque[Span] = deque(maxlen=KEPT_SPANS)

    @contextmanager
    def __call__(self, phase: str, *, items: int = 0, step: int | None = None) -> Iterator[Callable[[int], None]]:
        """Time the block as `phase`, of a step if it is not the next to be recorded; it may report progress."""
        patience = max(self._patience_seconds, 3 * self._longest.get(phase, 0.0))
        done = 0
        self._reporter.phase(phase, total=items)
        start = time.perf_counter()

        def advance(number: int) -> None:
            nonlocal done
            done = number
            self._reporter.phase(phase, done=done, total=items)

        def say_waiting() -> None:
            progress = f", {done} of {items} done" if items else ""
            self._reporter.say(f"still in `{phase}` after {time.perf_counter() - start:.0f} s{progress}")

        watch = _Watch(say_waiting, patience)
        try:
            with self.span(phase, rows=items, step=step):
                yield advance
        finally:
            watch.stop()
            spent = time.perf_counter() - start
            with self._lock:
                self._longest[phase] = max(spent, self._longest.get(phase, 0.0))
                self.seconds[phase] = self.seconds.get(phase, 0.0) + spent

    @contextmanager
    def span(self, name: str, *, rows: int = 0, step: int | None = None) -> Iterator[None]:
        """Record when the block ran, without counting its seconds."""
        start = time.time()
        try:
            yield
        finally:
            self.record(name, start=start, rows=rows, step=step)

    def record(self, name: str, *, start: float, rows: int = 0, step: int | None = None) -> None:
        """Record what this thread has done since `start`, in seconds since the epoch."""
        thread = threading.current_thread().name
        self._spans.append(Span(name=name, start=start, end=time.time(), step=step, thread=thread, rows=rows or None))

    def take(self) -> dict[str, float]:
        """The seconds by phase since the last call."""
        with self._lock:
            seconds, self.seconds = self.seconds, {}
        return seconds

    def take_spans(self) -> list[Span]:
        """What has ended since the last call."""
        return taken(self._spans)


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
