"""Terminal output: data on stdout, everything else on stderr. The only module that imports rich."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

UNBOUNDED_WIDTH = 10_000
PLAIN_INTERVAL_SECONDS = 10.0


class Progress(Protocol):
    """A progress bar."""

    def advance(self, steps: int = 1, *, note: str = "") -> None: ...


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, stream: TextIO | None = None
) -> None:
    """Print a table on a stream, stdout by default. If it is not a terminal, each row is one line."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream = stream or sys.stdout
    terminal = stream.isatty()
    console = Console(file=stream, highlight=False, width=None if terminal else UNBOUNDED_WIDTH)
    table = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    with console.capture() as capture:
        console.print(table)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()), file=stream)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines on stdout unchanged."""
    for line in lines:
        print(line)


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_note(text: str) -> None:
    """Print a line on stderr."""
    print(text, file=sys.stderr, flush=True)


def print_warning(text: str) -> None:
    """Print a warning on stderr."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


@contextmanager
def progress(total: int, description: str) -> Iterator[Progress]:
    """A progress bar on stderr, or a line every few seconds if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield PlainProgress(total, description, sys.stderr)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    console = Console(file=sys.stderr, highlight=False)
    with RichProgress(*columns, console=console, redirect_stdout=sys.stdout.isatty()) as bar:
        yield _Bar(bar, bar.add_task(description, total=total, note=""))


class _Bar:
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task

    def advance(self, steps: int = 1, *, note: str = "") -> None:
        self._bar.update(self._task, advance=steps, note=note)


class PlainProgress:
    """Progress as lines: the first, the last, and one every few seconds in between."""

    def __init__(
        self, total: int, description: str, stream: TextIO, *, interval_seconds: float = PLAIN_INTERVAL_SECONDS
    ) -> None:
        self._total = total
        self._description = description
        self._stream = stream
        self._interval_seconds = interval_seconds
        self._done = 0
        self._shown_at: float | None = None

    def advance(self, steps: int = 1, *, note: str = "") -> None:
        self._done += steps
        now = time.monotonic()
        due = self._shown_at is None or now - self._shown_at >= self._interval_seconds
        if due or self._done >= self._total:
            self._shown_at = now
            line = f"{self._description}: {self._done}/{self._total}"
            print(f"{line} {note}".rstrip(), file=self._stream, flush=True)


class LiveStatus:
    """A line at the bottom of the terminal: the step, the phase, and the progress within the phase."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar: Any = RichProgress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[phase]}"),
            console=Console(file=sys.stderr, highlight=False),
            redirect_stdout=sys.stdout.isatty(),
        )
        self._task = self._bar.add_task("step", total=None, phase="")

    def __enter__(self) -> LiveStatus:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def show(self, step: int, num_steps: int, *, phase: str, done: int, items: int) -> None:
        """`phase` is the timer's name for it; `items` is 0 if the phase does not count any."""
        counted = f"{phase} {done}/{items}" if items else phase
        self._bar.update(self._task, completed=step, total=num_steps or None, phase=counted)
