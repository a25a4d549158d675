"""The built-in tiny model learns from offline data, as held-out rows show."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from fakes.runs import records, train

TASK = [
    "model.path=tiny",
    "data.max_prompt_length=16",
    "data.max_response_length=8",
    "trainer.batch_size=32",
    "trainer.save_every=0",
    "trainer.loggers=jsonl",
]
SUMS = [
    "data.train_files=arithmetic",
    "data.val_files=arithmetic",
    "data.max_train_samples=2000",
    "data.max_val_samples=200",
]
SETTINGS = {
    "sft": [*SUMS, "optimizer.actor_lr=1e-3", "algorithm.sft.packing=true"],
    "dpo": [*SUMS, "optimizer.actor_lr=3e-4"],
    "kto": [*SUMS, "optimizer.actor_lr=3e-4", "trainer.batch_size=64"],
    "reward_model": ["optimizer.actor_lr=1e-3"],
}
IN_EXAMPLES = ("sft", "dpo")
"examples show that these learn"
NUM_STEPS = {"sft": 40, "dpo": 40, "kto": 40, "reward_model": 100}


def held_out(folder: Path, algorithm: str, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The measures before and after so many steps."""
    own = separable_pairs(folder) if algorithm == "reward_model" else []
    seeds = [f"trainer.seed={seed}", f"data.seed={seed}", f"trainer.num_steps={NUM_STEPS[algorithm]}"]
    arguments = [*TASK, *SETTINGS[algorithm], *own, *seeds, f"algorithm={algorithm}"]
    train([*arguments, f"trainer.output_dir={folder / 'run'}"])
    lines = records(folder / "run")
    return lines[0], lines[-1]


def separable_pairs(folder: Path) -> list[str]:
    """Two files of sums without a prompt in common; the better response is even, the worse odd."""
    generator = random.Random(1)
    for name, count in (("train", 1500), ("val", 200)):
        rows = [
            {
                "prompt": f"{generator.randrange(100)}+{generator.randrange(100)}=",
                "chosen": str(generator.randrange(0, 200, 2)),
                "rejected": str(generator.randrange(1, 200, 2)),
            }
            for _ in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return [f"data.train_files={folder / 'train.jsonl'}", f"data.val_files={folder / 'val.jsonl'}"]


def check(algorithm: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    assert (before["step"], after["step"]) == (0, NUM_STEPS[algorithm])
    if algorithm == "sft":
        assert after["eval/loss"] < 0.5 * before["eval/loss"]
    elif algorithm == "dpo":
        assert after["eval/rewards/margins"] > before["eval/rewards/margins"] + 0.2
        assert after["eval/rewards/accuracies/low95"] > 0.7
    elif algorithm == "kto":
        assert after["eval/rewards/margins"] > before["eval/rewards/margins"] + 0.1
        assert after["eval/rewards/chosen"] > after["eval/rewards/rejected"]
    else:
        assert after["eval/rewards/accuracies"] > 0.9


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=[pytest.mark.slow] if name in IN_EXAMPLES else []) for name in SETTINGS]
)
def test_what_is_held_out_shows_what_was_learned(algorithm: str, tmp_path: Path) -> None:
    check(algorithm, *held_out(tmp_path, algorithm, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4])
@pytest.mark.parametrize("algorithm", SETTINGS)
def test_other_seeds_learn_too(algorithm: str, seed: int, tmp_path: Path) -> None:
    check(algorithm, *held_out(tmp_path, algorithm, seed=seed))
