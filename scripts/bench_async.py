"""Steps per hour and idle shares of runs that take turns and of asynchronous ones, on two CPU processes.

    .venv/bin/python scripts/bench_async.py [--steps 8] [--model MODEL] [KEY=VALUE ...]

At a high temperature the small model of the package ends its responses at random, so that a few of them are long.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

SETTINGS = (
    "data.train_files=arithmetic",
    "data.val_files=",
    "data.max_prompt_length=16",
    "data.max_response_length=192",
    "algorithm.name=grpo",
    "algorithm.group_size=4",
    "trainer.batch_size=8",
    "trainer.mini_batch_size=8",
    "trainer.save_every=0",
    "trainer.loggers=jsonl",
    "rollout.temperature=4",
    "rollout.max_num_seqs=8",
    "plan.device=cpu",
)
TURNS = ("plan.num_devices=2",)
POOLS = ("pools.gen.roles=rollout", "pools.gen.device=cpu", "trainer.flow=async")
CASES = {
    "in turn, 2 processes": TURNS,
    **{f"1 + 1, staleness {bound}": (*POOLS, f"trainer.max_staleness={bound}") for bound in (0, 1, 4)},
    "1 + 1, staleness 1, wait": (*POOLS, "trainer.max_staleness=1", "rollout.on_update=wait"),
    "1 + 1, staleness 1, abort": (*POOLS, "trainer.max_staleness=1", "rollout.on_update=abort"),
}


def measured(name: str, settings: tuple[str, ...], folder: Path) -> str:
    """A row of the table. The first two steps are left out: models start in them."""
    run = folder / name.replace(" ", "_")
    command = [sys.executable, "-m", "rl_compat", "train", f"trainer.output_dir={run}", *settings]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "training/global_step" in line][2:]

    def average(key: str) -> str:
        values = [step[key] for step in steps if key in step]
        return f"{mean(values):.2f}" if values else "-"

    columns = ("perf/idle_share/main", "perf/idle_share/gen", "async/staleness/mean", "async/ess", "async/tokens_lost")
    per_hour = 3600 / mean(step["timing_s/step"] for step in steps)
    return f"| {name} | {per_hour:.0f} | {' | '.join(map(average, columns))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_args()
    common = (*SETTINGS, f"model.path={given.model}", f"trainer.num_steps={given.steps}", *given.settings)
    print("| flow | steps/h | idle main | idle gen | staleness | ess | tokens lost |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, settings in CASES.items():
            print(measured(name, (*common, *settings), Path(folder)), flush=True)


if __name__ == "__main__":
    main()
