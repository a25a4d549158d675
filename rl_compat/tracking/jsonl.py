"""Metrics as JSON lines, the complete record of a run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path


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

    def resume_at(self, step: int) -> None:
        """Drop lines after the step, including an incomplete one, since they are written again.

        A run that begins at step 0 also writes that step again, so nothing is kept.
        """
        self._file.close()
        aside = self.path.with_name(self.path.name + ".tmp")
        with aside.open("w", encoding="utf-8") as file:
            if step > 0:
                file.writelines(_lines_until(self.path, step))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def close(self) -> None:
        self._file.close()


def _number(value: float) -> float | None:
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else None


def _lines_until(path: Path, step: int) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if _step_of(line) <= step:
                yield line


def _step_of(line: str) -> float:
    """The step of a line, infinite when the line is damaged."""
    try:
        return float(json.loads(line)["step"]) if line.endswith("\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf
