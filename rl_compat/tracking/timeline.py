"""What ran when, on which device, as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

TIMELINE_FILE = "timeline.jsonl"
STEP = "step"
"name of the span of a whole step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A phase of a run in one of its threads, or a call on a device."""

    name: str
    "a phase, such as `gen`, or a call, such as `RolloutWorker.generate`"
    start: float
    "seconds since the epoch"
    end: float
    step: int | None = None
    "of a phase: the step that it is part of; of a call: the step that is recorded next"
    thread: str | None = None
    "of a phase"
    pool: str | None = None
    "of a call"
    rank: int | None = None
    "of a call"
    rows: int | None = None
    version: int | None = None
    "of a call: the policy version of its worker when it ended"

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def lane(self) -> str:
        """What it ran on: `gen/0`, rank 0 of the pool `gen`, or the name of a thread."""
        return f"{self.pool}/{self.rank}" if self.pool is not None else str(self.thread)

    def line(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        times = {"start": round(self.start, 5), "end": round(self.end, 5)}
        return json.dumps({name: value for name, value in (values | times).items() if value is not None})


def read_spans(path: Path) -> Iterator[Span]:
    """The spans of a file, without damaged lines."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                yield Span(**json.loads(line))
            except (ValueError, TypeError):
                continue


def append_spans(path: Path, spans: Iterable[Span]) -> None:
    """Add lines to the file."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{span.line()}\n" for span in spans)
