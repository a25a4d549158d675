"""Metrics as JSON lines, the complete record of a run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

METRICS_FILE = "metrics.jsonl"


class JsonlTracker:
    """Appends `{"step": N, name: value, ...}` to a file, one object per line, on disk when `log` returns.

    Values keep all their digits. Infinities and NaN, which JSON does not have, are written as null.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        record = {"step": step} | {name: _number(value) for name, value in metrics.items()}
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _number(value: float) -> float | None:
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else None


def forget_after(step: int, path: Path) -> None:
    """Drop the lines after a step, including an incomplete one, since a resumed run writes them again.

    A run that begins at step 0 also writes that step again, so nothing is kept.
    """
    if not path.exists():
        return
    aside = path.with_name(path.name + ".tmp")
    with path.open(encoding="utf-8", errors="replace") as lines, aside.open("w", encoding="utf-8") as file:
        file.writelines(line for line in lines if step > 0 and step_of(line) <= step)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def step_of(line: str) -> float:
    """The step of a line, infinite when the line is damaged."""
    try:
        return float(json.loads(line)["step"]) if line.endswith("\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf


def is_step(line: str) -> bool:
    """Whether a line holds the metrics of a training step, not of a validation."""
    return '"training/global_step"' in line
