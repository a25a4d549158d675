"""Engines measured one after the other, each in a process that may fail without ending the rest."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rl_compat.rollout.bench_options import BenchOptions

COLUMNS = ("case", "engine", "tokens/s", "ratio", "ms/step", "floor", "first s", "GiB")
MARK = "ROW "
OWN = "rl_compat.rollout"

Rows = list[dict[str, Any]]


def measured(
    engines: Sequence[str],
    options: BenchOptions,
    questions: Sequence[str],
    *,
    max_seconds: float,
    say: Callable[[str], None],
) -> Rows:
    """The rows of all engines; one that fails gives a row with its last words in `error`. `say` hears of progress."""
    return [
        row
        for engine in engines
        for row in _measured_apart(engine, options, questions, max_seconds=max_seconds, say=say)
    ]


def _measured_apart(
    engine: str, options: BenchOptions, questions: Sequence[str], *, max_seconds: float, say: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "rl_compat.rollout.bench_worker", engine, options.to_json()]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(list(questions)))
    process.stdin.close()
    watch = threading.Timer(max_seconds, process.kill)
    watch.start()
    tail: list[str] = []
    for line in process.stdout:
        if line.startswith(MARK):
            row: dict[str, Any] = json.loads(line.removeprefix(MARK))
            say(f"{engine}: {row['case']}: {row['tokens_per_second']:,.0f} tokens/s")
            yield row
            continue
        tail = [*tail[-30:], line.rstrip()]
        if line.startswith(OWN):
            say(f"  {line.rstrip()}")
    late = not watch.is_alive()
    watch.cancel()
    if process.wait() != 0:
        tail += [f"stopped after {max_seconds:.0f} seconds"] if late else []
        say("\n    ".join([f"{engine} failed:", *tail]))
        yield {"engine": engine, "error": "\n".join(tail[-8:])}


def table(rows: Rows, *, baseline: str) -> list[tuple[str, ...]]:
    """Cells by `COLUMNS`, case by case. The ratio is to the baseline, the floor what of a step nobody can save."""
    found = [row for row in rows if "case" in row]
    base = {row["case"]: row["tokens_per_second"] for row in found if row["engine"] == baseline}
    places = {case: place for place, case in enumerate(dict.fromkeys(row["case"] for row in found))}
    return [_cells(row, base) for row in sorted(found, key=lambda row: places[row["case"]])]


def _cells(row: Mapping[str, Any], base: Mapping[str, float]) -> tuple[str, ...]:
    step, floor, peak = row["step_seconds"], row["floor_fraction"], row["peak_bytes"]
    return (
        row["case"],
        row["engine"],
        f"{row['tokens_per_second']:,.0f}",
        f"{row['tokens_per_second'] / base[row['case']]:.2f}" if row["case"] in base else "",
        "" if step is None else f"{step * 1000:.2f}",
        "" if floor is None else f"{floor:.0%}",
        f"{row['first_seconds']:.1f}",
        "" if peak is None else f"{peak / 2**30:.1f}",
    )
