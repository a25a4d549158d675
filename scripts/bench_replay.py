"""The throughput and the memory of the experience buffer and of its record, on this machine.

    python scripts/bench_replay.py --groups 1000000 --tokens 8 --folder /tmp/record

Groups of one response come in steps of 10,000. The buffer holds all of them; a draw is of 256 groups by priority.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow

from rl_compat.config.types import ReplayConfig, SamplesConfig
from rl_compat.replay.buffer import ReplayBuffer
from rl_compat.replay.record import RecordWriter

PER_STEP = 10_000
"groups"
DRAWN = 256
RECORDED = 20
"steps"


def step_rows(step: int, *, tokens: int) -> pyarrow.Table:
    """A step of groups of one response each, with random token ids."""
    generator = np.random.default_rng(step)
    offsets = pyarrow.array(np.arange(PER_STEP + 1, dtype=np.int32) * tokens)

    def column(values: np.ndarray) -> pyarrow.Array:
        return pyarrow.ListArray.from_arrays(offsets, pyarrow.array(values))

    count = PER_STEP * tokens
    return pyarrow.table(
        {
            "group": np.arange(step * PER_STEP, (step + 1) * PER_STEP),
            "row": np.arange(PER_STEP),
            "reward": generator.random(PER_STEP),
            "response_ids": column(generator.integers(0, 50_000, count).astype(np.int32)),
            "rollout_logprobs": column(generator.random(count).astype(np.float32)),
            "policy_versions": column(np.full(count, step, dtype=np.int32)),
        }
    )


def seconds_of(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1_000_000, help="groups to add (default: %(default)s)")
    parser.add_argument("--capacity", type=int, help="groups that the buffer holds (default: all)")
    parser.add_argument("--tokens", type=int, default=8, help="tokens of a response (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the record is written (default: a temporary folder)")
    given = parser.parse_args()
    steps = given.groups // PER_STEP
    replay = ReplayConfig(capacity=given.capacity or given.groups, priority="advantage", max_staleness=steps)
    buffer = ReplayBuffer(SamplesConfig(reuse=3, replay=replay), hot=PER_STEP)
    add, draw = [], []
    for step in range(steps):
        table = step_rows(step, tokens=given.tokens)
        priority = np.random.default_rng(step).random(PER_STEP) + 1e-3
        by_group = dict(zip(table["group"].to_pylist(), priority.tolist(), strict=True))
        add.append(seconds_of(lambda: buffer.add_rows(table, by_group, version=step)))  # noqa: B023
        draw.append(seconds_of(lambda: buffer.draw(DRAWN, version=step, seed=step)))  # noqa: B023
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        tables = [step_rows(step, tokens=given.tokens) for step in range(RECORDED)]
        writer = RecordWriter(Path(folder))
        record = seconds_of(lambda: ([writer.write(step, table) for step, table in enumerate(tables)], writer.flush()))
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        writer.close()
        saved = seconds_of(lambda: buffer.save(Path(folder)))
        loaded = seconds_of(lambda: ReplayBuffer(buffer.settings, hot=PER_STEP).load(Path(folder)))
    last = max(1, steps // 10)
    rows = RECORDED * PER_STEP
    print(f"{len(buffer):,} groups of {given.tokens} tokens in memory, {steps:,} steps of {PER_STEP:,}")
    print(f"add    {PER_STEP / statistics.median(add[-last:]):>12,.0f} groups/s in the last tenth of the steps")
    print(f"draw   {DRAWN / statistics.median(draw[-last:]):>12,.0f} groups/s, {DRAWN} at a time")
    print(f"record {rows / record:>12,.0f} responses/s on disk, {size / rows:.0f} bytes each")
    print(f"save   {saved:>12.2f} s, load {loaded:.2f} s")
    print(
        f"memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:>12,.0f} MiB at most, of the whole process"
    )


if __name__ == "__main__":
    sys.exit(main())
