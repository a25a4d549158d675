"""The interface of trackers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Warn = Callable[[str], None]
"shows one sentence to the user; the argument does not begin with `warning:`"


def _print_warning(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Information about a run that its trackers share."""

    folder: Path
    project: str
    experiment: str
    resume_step: int
    "the last finished step, 0 for a new run; what was written after it is dropped"
    warn: Warn = _print_warning


class Tracker(Protocol):
    """A destination of metrics."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics of a step. A step may be logged more than once, with different names."""

    def close(self) -> None:
        """Flush, and close files and connections. May be called twice."""
