"""Terminal output: data on stdout, everything else on stderr. The only module that imports rich."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, Self, TextIO

from rl_compat.errors import RLCompatError

UNBOUNDED_WIDTH = 10_000
PLAIN_INTERVAL_SECONDS = 10.0


class Progress(Protocol):
    """A progress bar."""

    def advance(self, steps: int = 1, *, note: str = "") -> None: ...


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, stream: TextIO | None = None
) -> None:
    """Print a table on a stream, stdout by default. If it is not a terminal, each row is one line.

    On a terminal that is too narrow for whole words, the cells of a row stand below each other with their columns.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream = stream or sys.stdout
    cells = [[str(cell) for cell in row] for row in rows]
    width = width_of(stream)
    words = [
        max((len(word) for text in column for word in text.split()), default=0)
        for column in zip(columns, *cells, strict=True)
    ]
    if sum(words) + 3 * len(words) > width:
        names = max(map(len, columns))
        lines = [
            f"{name:<{names}}  {cell}" for row in cells for name, cell in zip((*columns, ""), (*row, ""), strict=True)
        ]
        print("\n".join(fitted(line.rstrip(), stream) for line in [title, "", *lines]), file=stream)
        return
    console = Console(file=stream, highlight=False, width=width)
    table = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    with console.capture() as capture:
        console.print(table)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()), file=stream)


def width_of(stream: TextIO) -> int:
    """The columns of a terminal; without a terminal, lines have no end."""
    return shutil.get_terminal_size().columns if stream.isatty() else UNBOUNDED_WIDTH


def fitted(text: str, stream: TextIO) -> str:
    """Text with line ends between words, where its terminal is too narrow for the line."""
    width = width_of(stream)
    if len(text) <= width:
        return text
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines on stdout."""
    for line in lines:
        print(fitted(line, sys.stdout))


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_note(text: str) -> None:
    """Print a line on stderr, or nothing if its terminal or reader is gone."""
    try:
        print(fitted(text, sys.stderr), file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def print_warning(text: str) -> None:
    """Print a warning on stderr."""
    print_note(f"warning: {text}")


def show_error(error: RLCompatError) -> None:
    """Print the message and the hint on stderr, after the traceback if RLC_DEBUG is set."""
    if os.environ.get("RLC_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    print_note(f"error: {error.message}")
    if error.hint:
        print_note(f"hint: {error.hint}")


def discard(stream: TextIO) -> None:
    """Send what a stream still holds and what follows nowhere, when its reader is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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


class TerminalReporter:
    """The progress of a run on stderr: notes and warnings, above a line with the step and the phase on a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._step = (0, 0)

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(
                TextColumn("step"),
                MofNCompleteColumn(),
                *([BarColumn(bar_width=24)] if width_of(sys.stderr) >= 72 else []),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[phase]}"),
                console=Console(file=sys.stderr, highlight=False),
                redirect_stdout=sys.stdout.isatty(),
            )
            self._bar.add_task("step", total=None, phase="")
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            with suppress(OSError):
                self._bar.stop()

    def say(self, text: str) -> None:
        print_note(text)

    def phase(self, name: str, *, done: int = 0, total: int = 0) -> None:
        if name == "step" and total:
            self._step = (done, total)
        elif self._bar is not None:
            step, num_steps = self._step
            phase = f"{name} {done}/{total}" if total else name
            self._bar.update(self._bar.task_ids[0], completed=step, total=num_steps or None, phase=phase)
