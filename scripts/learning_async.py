"""What stale and repeated responses cost: the built-in tiny model on sums, and a table of rewards by step.

python scripts/learning_async.py --seeds 1 2 3

Each run takes 20 to 30 seconds on one core. Results are saved as JSON lines, and existing ones are not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from learning_table import GROUPS, ROOT, SINGLE, LearningRun, train

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
RECIPES = {
    f"{name}, {form}": LearningRun(settings=(f"algorithm.name={name}", *shape, *settings), num_steps=max(STEPS))
    for name, shape in (("ppo", SINGLE), ("grpo", GROUPS))
    for form, settings in FORMS.items()
}


def outcome(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean rewards up to each of STEPS, with the mean staleness and effective sample size of the later half."""
    rewards, later = [step["critic/score/mean"] for step in steps], steps[len(steps) // 2 :]
    found: dict[str, Any] = {"rewards": [fmean(rewards[last - WINDOW : last]) for last in STEPS]}
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
            cells = [interval([one["rewards"][place] for one in own]) for place in range(len(STEPS))]
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
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "learning_async.jsonl")
    options = parser.parse_args(None if arguments is None else list(arguments))
    options.results.parent.mkdir(parents=True, exist_ok=True)
    results = read(options.results)
    for seed in options.seeds:
        for name in options.only or RECIPES:
            if (name, seed) not in results:
                with tempfile.TemporaryDirectory() as folder:
                    found = outcome(train(RECIPES[name], seed=seed, folder=Path(folder)))
                with options.results.open("a") as file:
                    file.write(json.dumps({"run": name, "seed": seed, **found}) + "\n")
                print(f"{name}, seed {seed}: {found}", file=sys.stderr)
                results[name, seed] = found
    print(render(results, options.seeds))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
