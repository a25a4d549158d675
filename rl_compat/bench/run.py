"""Runs the benchmark: engines one after the other, each with each model in its own process, which may fail."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rl_compat.bench.options import ENGINES, NOW, ROW, BenchOptions

COLUMNS = ("case", "engine", "tokens/s", "ratio", "ms/step", "floor", "start s", "first s", "GiB")
OWN = "rl_compat.rollout"
LINES_KEPT = 30
LINES_OF_ERROR = 8

Rows = list[dict[str, Any]]
Say = Callable[[str], None]
Show = Callable[[int, str], None]


def measured(
    engines: Sequence[str],
    options: BenchOptions,
    questions: Sequence[str],
    *,
    total_seconds: float,
    say: Say,
    show: Show = lambda finished, doing: None,
) -> Rows:
    """The rows of all engines. An engine that fails has a row with its last message in `error`.

    `say` receives results and failures; `show` receives the number of newly finished cases and the current activity.
    Each engine may use its share of the time plus what earlier engines left of theirs.
    """
    rows: Rows = []
    ends = time.monotonic() + total_seconds
    runs = [(engine, part) for engine in engines for part in options.apart()]
    for place, (engine, part) in enumerate(runs):
        seconds = (ends - time.monotonic()) / (len(runs) - place)
        found = list(_measured_apart(engine, part, questions, max_seconds=seconds, say=say, show=show))
        missing = part.num_cases - sum("case" in row for row in found)
        if missing:
            show(missing, f"{engine}: failed")
        rows += found
    return rows


def _measured_apart(
    engine: str, options: BenchOptions, questions: Sequence[str], *, max_seconds: float, say: Say, show: Show
) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "rl_compat.bench.worker", engine, options.to_json()]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    watch = threading.Timer(max_seconds, process.kill)
    watch.start()
    show(0, f"{engine}: loading")
    tail: list[str] = []
    try:
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(list(questions)))
            process.stdin.close()
        for line in map(str.rstrip, process.stdout):
            if line.startswith(ROW):
                row: dict[str, Any] = json.loads(line.removeprefix(ROW))
                say(f"{engine}: {row['case']}: {row['tokens_per_second']:,.0f} tokens/s")
                show(1, engine)
                yield row
            elif line.startswith(NOW):
                show(0, f"{engine}: {line.removeprefix(NOW)}")
            else:
                tail = [*tail[-LINES_KEPT:], line]
                if line.startswith(OWN):
                    say(f"  {line}")
        late = not watch.is_alive()
        failed = process.wait() != 0
    finally:
        watch.cancel()
        process.kill()
        process.wait()
    if failed:
        tail += [f"stopped after {max_seconds:.0f} seconds"] if late else []
        say("\n    ".join([f"{engine} failed:", *tail]))
        dtype = ENGINES[engine][1] if engine in ENGINES else None
        yield {"engine": engine, "dtype": dtype, "error": "\n".join(tail[-LINES_OF_ERROR:])}


def table(rows: Rows, *, baseline: str) -> list[tuple[str, ...]]:
    """Cells by `COLUMNS`, case by case. The ratio is to the baseline; the floor is the minimum fraction of a step."""
    found = [row for row in rows if "case" in row]
    base = {row["case"]: row["tokens_per_second"] for row in found if row["engine"] == baseline}
    places = {case: place for place, case in enumerate(dict.fromkeys(row["case"] for row in found))}
    return [_cells(row, base) for row in sorted(found, key=lambda row: places[row["case"]])]


def _cells(row: Mapping[str, Any], base: Mapping[str, float]) -> tuple[str, ...]:
    step, floor = row["step_seconds"], row["floor_fraction"]
    return (
        row["case"],
        row["engine"],
        f"{row['tokens_per_second']:,.0f}",
        f"{row['tokens_per_second'] / base[row['case']]:.2f}" if row["case"] in base else "",
        "" if step is None else f"{step * 1000:.2f}",
        "" if floor is None else f"{floor:.0%}",
        f"{row['start_seconds']:.1f}",
        f"{row['first_seconds']:.1f}",
        f"{row['peak_bytes'] / 2**30:.1f}",
    )
