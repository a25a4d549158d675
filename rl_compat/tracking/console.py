"""Metrics as one line per step on stdout, in verl's format."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TextIO


class ConsoleTracker:
    """Prints `step:N - key:value - key:value`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        "`sys.stdout` at the time of each line if None, so that a progress bar can stay below the lines"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        print(format_line(step, metrics), file=self._stream or sys.stdout, flush=True)

    def close(self) -> None:
        """Nothing to close."""


def format_line(step: int, metrics: Mapping[str, float]) -> str:
    """The line of a step: fields between ` - `, name and value between `:`."""
    return " - ".join([f"step:{step}", *(f"{name}:{_short(value)}" for name, value in metrics.items())])


def _short(value: float) -> str:
    """Whole numbers in full, others with five significant digits; `float` reads all of them."""
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return str(int(value)) if isinstance(value, int) else f"{value:.1f}"
    return f"{value:.5g}" if abs(value) < 1e5 else f"{value:.1f}"
