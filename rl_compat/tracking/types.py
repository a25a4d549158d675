"""What every tracker can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

Warn = Callable[[str], None]
"says one sentence to the user, without `warning:` before it"


class Tracker(Protocol):
    """A place that metrics are written to, one step at a time."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of a step. A step may be logged more than once, with other names."""

    def close(self) -> None:
        """Write what is still held and let go of files and connections. Closing twice is harmless."""
