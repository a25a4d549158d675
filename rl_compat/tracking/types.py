"""What every tracker can do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Warn = Callable[[str], None]
"says one sentence to the user, without `warning:` before it"


def _print_warning(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """What the trackers of one run have in common."""

    folder: Path
    project: str
    experiment: str
    resume_step: int
    "the last finished step, 0 for a new run; what was written after it is dropped"
    warn: Warn = _print_warning


class Tracker(Protocol):
    """A place that metrics are written to, one step at a time."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of a step. A step may be logged more than once, with other names."""

    def close(self) -> None:
        """Write what is still held and let go of files and connections. Closing twice is harmless."""
