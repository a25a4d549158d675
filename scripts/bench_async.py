"""Steps per hour and idle shares of runs that take turns and of asynchronous ones.

    .venv/bin/python scripts/bench_async.py [--on one] [--steps 8] [--rounds 1] [--model MODEL] [KEY=VALUE ...]

Two CPU processes, or with `--on one` one device. At a high temperature the small model of the package ends its
responses at random, so that a few of them are long. `--shape 0.5b` is a random Qwen2.5 of that shape, whose responses
end at a random word. `--reward-seconds` is the time that the reward function takes for a response.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench_trl import save_random_model

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
)
TURNS = ("plan.device=cpu", "plan.num_devices=2")
POOLS = ("plan.device=cpu", "pools.gen.roles=rollout", "pools.gen.device=cpu", "trainer.flow=async")
TWO = {
    "in turn, 2 processes": TURNS,
    **{f"1 + 1, staleness {bound}": (*POOLS, f"trainer.max_staleness={bound}") for bound in (0, 1, 4)},
    "1 + 1, staleness 1, wait": (*POOLS, "trainer.max_staleness=1", "rollout.on_update=wait"),
    "1 + 1, staleness 1, abort": (*POOLS, "trainer.max_staleness=1", "rollout.on_update=abort"),
}
ONE = {
    "in turn": (),
    "staleness 1, wait": ("trainer.flow=async", "rollout.on_update=wait"),
    "staleness 1, continue": ("trainer.flow=async",),
}
CASES = {"two": TWO, "one": ONE}
OF_RANDOM = ("rollout.temperature=1", "rollout.stop_strings=w77", "rollout.max_num_seqs=64")
"of a random model: 7 tokens in 1,000 have this text"
COLUMNS = {
    "idle main": "perf/idle_share/main",
    "idle gen": "perf/idle_share/gen",
    "staleness": "async/staleness/mean",
    "ess": "async/ess",
    "tokens lost": "async/tokens_lost",
    "gen s": "timing_s/gen",
    "update s": "timing_s/update_actor",
    "reward s": "timing_s/reward",
}
REWARD = """import time

def compute_score(solution_str):
    time.sleep({seconds})
    return float(len(solution_str) % 2)
"""


def steps_of(run: Path, settings: tuple[str, ...]) -> list[dict[str, Any]]:
    """The metrics of a run without its first two steps, in which models start."""
    command = [sys.executable, "-m", "rl_compat", "train", f"trainer.output_dir={run}", *settings]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-4000:])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "training/global_step" in line][2:]


def row(name: str, steps: list[dict[str, Any]]) -> str:
    """A row of the table, by the median step."""

    def average(key: str) -> str:
        values = [step[key] for step in steps if key in step]
        return f"{mean(values):.2f}" if values else "-"

    seconds = median(step["timing_s/step"] for step in steps)
    return f"| {name} | {3600 / seconds:.0f} | {' | '.join(map(average, COLUMNS.values()))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=CASES, default="two")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1, help="runs of each case, which take turns")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--shape", help="a random model of this shape in place of --model")
    parser.add_argument("--emulate", help="card that the device emulates")
    parser.add_argument("--reward-seconds", type=float, help="of a reward function that says nothing about the answer")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common = [*SETTINGS, f"model.path={given.model}", f"trainer.num_steps={given.steps}"]
        if given.shape:
            common += [*OF_RANDOM, f"model.path={save_random_model(folder / 'model', given.shape)}"]
        if given.reward_seconds is not None:
            (folder / "reward.py").write_text(REWARD.format(seconds=given.reward_seconds))
            common.append(f"reward.functions={folder / 'reward.py'}:compute_score")
        if given.emulate:
            common += ["--as", given.emulate]
        found: dict[str, list[dict[str, Any]]] = {case: [] for case in CASES[given.on]}
        for number in range(given.rounds):
            for case, settings in CASES[given.on].items():
                run = folder / f"{case.replace(' ', '_')}_{number}"
                found[case] += steps_of(run, (*common, *settings, *given.settings))
                print(row(case, found[case]), file=sys.stderr, flush=True)
    print(f"| flow | steps/h | {' | '.join(COLUMNS)} |")
    print(f"|---|---|{'---|' * len(COLUMNS)}")
    for case, steps in found.items():
        print(row(case, steps))


if __name__ == "__main__":
    main()
