"""Train the built-in tiny model on sums with every algorithm and policy loss, and write a table of the results.

python scripts/learning_table.py --seeds 1 2 3

Each run takes 10 to 20 seconds on one core. Results are saved as JSON lines, and existing ones are not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COST = f"{Path(__file__).with_name('seven_cost.py')}:compute_scores"

TASK = (
    "model.path=tiny",
    "data.train_files=arithmetic",
    "data.val_files=[]",
    "data.max_prompt_length=16",
    "data.max_response_length=4",
    "optimizer.actor_lr=4e-4",
    "optimizer.critic_lr=1e-3",
    "trainer.save_every=0",
    "trainer.num_sample_generations=0",
    "trainer.loggers=jsonl",
)
SINGLE = ("trainer.batch_size=128", "trainer.mini_batch_size=32")
GROUPS = ("algorithm.group_size=4", "trainer.batch_size=32", "trainer.mini_batch_size=8")
ONE_UPDATE = ("algorithm.group_size=4", "trainer.batch_size=8")
LAST = 10
"the result is the mean over this number of steps at the end"
RISE = 0.2
"that counts as learned"
COST_LIMIT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRun:
    """A run: its settings in addition to TASK, and its number of steps."""

    settings: tuple[str, ...]
    num_steps: int = 40
    metric: str = "critic/score/mean"


def _grouped(name: str, *more: str) -> LearningRun:
    return LearningRun(settings=(f"algorithm.name={name}", *GROUPS, *more))


def _single(name: str, *more: str) -> LearningRun:
    return LearningRun(settings=(f"algorithm.name={name}", *SINGLE, *more))


def _one_update(*settings: str) -> LearningRun:
    """The settings for a loss without a ratio: one update per step, and more, smaller steps."""
    return LearningRun(settings=(*settings, *ONE_UPDATE), num_steps=160)


ALGORITHMS: Mapping[str, LearningRun] = {
    "ppo": _single("ppo"),
    "ppo, V-trace": _single("ppo", "off_policy.vtrace.enabled=true"),
    "ppo_lagrangian": _single(
        "ppo_lagrangian",
        f"cost.functions={COST}",
        f"algorithm.lagrangian.cost_limit={COST_LIMIT}",
        "algorithm.lagrangian.lr=0.5",
    ),
    "reinforce_plus_plus": _single("reinforce_plus_plus"),
    "remax": _single("remax"),
    "grpo": _grouped("grpo"),
    "dr_grpo": _grouped("dr_grpo"),
    "dapo": LearningRun(
        settings=("algorithm.name=dapo", *GROUPS, "algorithm.max_sampling_rounds=2"),
        metric="training/filter_groups/sampled_score/mean",
    ),
    "rloo": _grouped("rloo"),
    "reinforce_plus_plus_baseline": _grouped("reinforce_plus_plus_baseline"),
    "opo": _grouped("opo"),
    "grpo_passk": _grouped("grpo_passk"),
    "gpg": _one_update("algorithm.name=gpg"),
    "gdpo": _grouped("gdpo", "reward.functions=arithmetic,repetition", "reward.weights=1,0.2"),
    "optimal_token_baseline": _grouped("optimal_token_baseline"),
    "tir_optimal_token_baseline": _grouped("tir_optimal_token_baseline"),
}
LOSSES: Mapping[str, LearningRun] = {
    **{
        f"grpo, {loss}": _grouped("grpo", f"algorithm.policy_loss={loss}")
        for loss in ("gspo", "cispo", "sapo", "clip_cov", "kl_cov", "geo_mean", "dro", "dppo_tv", "dppo_kl")
    },
    "grpo, reinforce": _one_update("algorithm.name=grpo", "algorithm.policy_loss=reinforce"),
    "grpo, token weights": _grouped("grpo", "off_policy.importance=token", "off_policy.truncate=2"),
    "grpo, bypass": _grouped("grpo", "off_policy.bypass=true"),
}
RECIPES: Mapping[str, LearningRun] = {**ALGORITHMS, **LOSSES}


def train(
    recipe: LearningRun, *, seed: int, folder: Path, num_steps: int | None = None, task: Sequence[str] = TASK
) -> list[dict[str, Any]]:
    """The metrics of a run, one dict per step."""
    from rl_compat.cli.app import main

    seeds = [f"{section}.seed={seed}" for section in ("trainer", "data", "rollout")]
    length = f"trainer.num_steps={num_steps or recipe.num_steps}"
    code = main(["train", *task, *recipe.settings, *seeds, length, f"trainer.output_dir={folder / 'run'}"])
    if code != 0:
        raise SystemExit(code)
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if "training/global_step" in record]


def outcome(recipe: LearningRun, steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The reward of the first step and the mean of the last steps; the same for the cost, if any."""
    rewards = [step[recipe.metric] for step in steps]
    found = {"first": rewards[0], "last": fmean(rewards[-LAST:])}
    costs = [step["cost/score/mean"] for step in steps if "cost/score/mean" in step]
    return found | ({"first_cost": costs[0], "last_cost": fmean(costs[-LAST:])} if costs else {})


def learned(found: Mapping[str, float]) -> bool:
    """Whether the reward rose and the cost, if any, is below its limit."""
    return found["last"] >= found["first"] + RISE and found.get("last_cost", 0.0) <= COST_LIMIT


def render(results: Mapping[tuple[str, int], Mapping[str, float]], seeds: Sequence[int]) -> str:
    """The table in Markdown with one row per recipe and one column per seed."""
    head = " | ".join(f"seed {seed}" for seed in seeds)
    lines = [f"| run | steps | {head} |", f"|---|---|{'---|' * len(seeds)}"]
    for name, recipe in RECIPES.items():
        cells = [_cell(results.get((name, seed))) for seed in seeds]
        lines.append(f"| {name} | {recipe.num_steps} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(found: Mapping[str, float] | None) -> str:
    if found is None:
        return "not run"
    text = f"{found['first']:.2f} → {found['last']:.2f}"
    if "last_cost" in found:
        text += f", cost {found['first_cost']:.2f} → {found['last_cost']:.2f}"
    return text if learned(found) else f"{text} (did not learn)"


def page(results: Mapping[tuple[str, int], Mapping[str, float]], seeds: Sequence[int]) -> str:
    """The page in Markdown."""
    share = sum(learned(found) for found in results.values())
    return f"""# What every algorithm learns

    python scripts/learning_table.py --seeds {" ".join(map(str, seeds))}

The built-in tiny model on sums of two numbers up to 99, on one core: the reward (the fraction of correct answers) of
the first step, and its mean over the last {LAST}. A run counts as having learned if the reward rose by {RISE}, which
{share} of {len(results)} did. The task, the learning rates and 128 responses per step are the same for nearly all runs,
so that the table shows that they learn, not which is better.

The differences were chosen after a first look at seed 1. `gpg` and `reinforce` have no ratio in their loss and use one
update per step, with 32 responses and more steps; with four updates per step `gpg` ended at 0.52. The Lagrange
multiplier of `ppo_lagrangian` has a learning rate of 0.5; with 1 its cost ended at 0.11, just above the limit. `dapo`
samples up to twice as many responses, and the table shows the reward of all of them. `gdpo` has a second part, which
penalizes repetition.

The cost limit of `ppo_lagrangian` allows a seven in at most {COST_LIMIT:g} of responses. It starts at twice as many.

{render(results, seeds)}

The settings of each run are in `scripts/learning_table.py`. `grpo, …` is GRPO with another policy loss or with
off-policy correction.
"""


def read(path: Path) -> dict[tuple[str, int], dict[str, float]]:
    """Results by recipe and seed."""
    if not path.exists():
        return {}
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return {(record.pop("run"), record.pop("seed")): record for record in records}


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", choices=RECIPES, help="some of the runs")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "learning.jsonl")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results" / "algorithms.md")
    options = parser.parse_args(None if arguments is None else list(arguments))
    options.results.parent.mkdir(parents=True, exist_ok=True)
    results = read(options.results)
    for seed in options.seeds:
        for name in options.only or RECIPES:
            if (name, seed) in results:
                continue
            with tempfile.TemporaryDirectory() as folder:
                steps = train(RECIPES[name], seed=seed, folder=Path(folder))
            results[name, seed] = found = outcome(RECIPES[name], steps)
            with options.results.open("a") as file:
                file.write(json.dumps({"run": name, "seed": seed, **found}) + "\n")
            print(f"{name}, seed {seed}: {_cell(found)}", file=sys.stderr)
    options.output.write_text(page(results, options.seeds))
    return 0 if all(map(learned, results.values())) else 1


if __name__ == "__main__":
    raise SystemExit(main())
