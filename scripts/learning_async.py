"""What stale and repeated responses cost: a table of rewards by step.

    python scripts/learning_async.py --seeds 1 2 3
    python scripts/learning_async.py --seeds 1 2 3 --task form --jobs 6

`--task sums` trains the built-in tiny model on sums, 20 to 30 seconds a run on one core. `--task form` trains
SmolLM2-135M to write the answers of GSM8K in the requested form, which takes a GPU. Results are saved as JSON lines,
and existing ones are not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from learning_table import GROUPS, ROOT, SINGLE, TASK, LearningRun, train

STEPS = (5, 10, 20, 40)
WINDOW = 5
"steps up to each of STEPS, of which the table has the mean reward"
STUDENT_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"97.5 % quantile of Student's t by number of seeds"
FORMS: Mapping[str, tuple[str, ...]] = {
    "in turn": (),
    "staleness 1": ("trainer.flow=async", "trainer.max_staleness=1"),
    "staleness 4": ("trainer.flow=async", "trainer.max_staleness=4"),
    "staleness 4, no correction": ("trainer.flow=async", "trainer.max_staleness=4", "off_policy.importance=none"),
    "reuse 2": ("samples.reuse=2",),
    "reuse 3": ("samples.reuse=3",),
}
SHAPES = {"ppo": SINGLE, "grpo": GROUPS}
RECIPES = {
    f"{name}, {form}": LearningRun(settings=(f"algorithm.name={name}", *shape, *settings), num_steps=max(STEPS))
    for name, shape in SHAPES.items()
    for form, settings in FORMS.items()
}
TASKS: Mapping[str, tuple[str, ...]] = {
    "sums": TASK,
    "form": (
        "model.path=smollm2-135m",
        "data.train_files=gsm8k",
        "data.val_files=[]",
        "data.max_prompt_length=192",
        "data.max_response_length=96",
        "reward.functions=gsm8k_format",
        "optimizer.actor_lr=1e-5",
        "optimizer.critic_lr=5e-5",
        "plan.max_tokens_per_micro_batch=16384",
        *TASK[TASK.index("trainer.save_every=0") :],
    ),
}


def measured(name: str, seed: int, task: str) -> dict[str, Any]:
    """The outcome of a run."""
    with tempfile.TemporaryDirectory() as folder:
        return outcome(train(RECIPES[name], seed=seed, folder=Path(folder), task=TASKS[task]))


def outcome(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The reward of each step, and means of the later half: seconds per step, staleness, effective sample size."""
    later = steps[len(steps) // 2 :]
    found: dict[str, Any] = {
        "rewards": [step["critic/score/mean"] for step in steps],
        "seconds": fmean(step["timing_s/step"] for step in later),
    }
    for name, keys in {
        "staleness": ("async/staleness/mean", "replay/staleness/mean"),
        "ess": ("async/ess", "replay/ess"),
    }.items():
        values = [step[key] for step in later for key in keys if key in step]
        found[name] = fmean(values) if values else None
    return found


def interval(values: Sequence[float]) -> str:
    """Mean and half the width of its 95 % interval over seeds."""
    if len(values) < 2:
        return f"{values[0]:.2f}"
    half = STUDENT_95[len(values)] * stdev(values) / math.sqrt(len(values))
    return f"{fmean(values):.2f} ± {half:.2f}"


def render(results: Mapping[tuple[str, int], Mapping[str, Any]], seeds: Sequence[int]) -> str:
    head = " | ".join(f"steps {last - WINDOW + 1} to {last}" for last in STEPS)
    lines = [f"| run | {head} | staleness | effective sample size |", f"|---|{'---|' * (len(STEPS) + 2)}"]
    for name in RECIPES:
        own = [results[name, seed] for seed in seeds if (name, seed) in results]
        if own:
            cells = [interval([fmean(one["rewards"][last - WINDOW : last]) for one in own]) for last in STEPS]
            for key in ("staleness", "ess"):
                values = [one[key] for one in own if one[key] is not None]
                cells.append(f"{fmean(values):.2f}" if values else "")
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def read(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Results by recipe and seed."""
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(record.pop("run"), record.pop("seed")): record for record in records}


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", choices=RECIPES, help="some of the runs")
    parser.add_argument("--task", choices=TASKS, default="sums")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time (default: 1)")
    parser.add_argument("--results", type=Path, help="default: runs/learning_async_TASK.jsonl")
    options = parser.parse_args(None if arguments is None else list(arguments))
    path: Path = options.results or ROOT / "runs" / f"learning_async_{options.task}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    results = read(path)
    wanted = [(name, seed) for seed in options.seeds for name in options.only or RECIPES if (name, seed) not in results]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as executor, path.open("a") as file:
        running = {executor.submit(measured, name, seed, options.task): (name, seed) for name, seed in wanted}
        for done in as_completed(running):
            name, seed = running[done]
            results[name, seed] = done.result()
            file.write(json.dumps({"run": name, "seed": seed, **results[name, seed]}) + "\n")
            file.flush()
            print(f"{name}, seed {seed}: {results[name, seed]['rewards'][-1]:.2f}", file=sys.stderr)
    print(render(results, options.seeds))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
