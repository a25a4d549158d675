"""The reward of the built-in tiny model rises: learning, not only running."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from fakes.runs import steps

from rl_compat.cli.app import main

TASK = [
    "model.path=tiny",
    "data.train_files=arithmetic",
    "data.val_files=[]",
    "data.max_prompt_length=16",
    "data.max_response_length=4",
    "optimizer.actor_lr=4e-4",
    "optimizer.critic_lr=1e-3",
    "trainer.save_every=0",
    "trainer.loggers=jsonl",
]
ALGORITHMS = {
    "ppo": [
        "trainer.batch_size=128",
        "trainer.mini_batch_size=32",
        "algorithm.kl_in_reward=k1",
        "algorithm.kl_coef=0.01",
    ],
    "grpo": ["trainer.batch_size=32", "trainer.mini_batch_size=8", "algorithm.group_size=8"],
}
NUM_STEPS = 50


def rewards(folder: Path, algorithm: str, seed: int) -> list[float]:
    seeds = [f"{section}.seed={seed}" for section in ("trainer", "data", "rollout")]
    settings = [*TASK, *ALGORITHMS[algorithm], *seeds, f"algorithm.name={algorithm}", f"trainer.num_steps={NUM_STEPS}"]
    assert main(["train", *settings, f"trainer.output_dir={folder / 'run'}"]) == 0
    return [step["critic/score/mean"] for step in steps(folder / "run").values()]


def check_learning(found: list[float]) -> None:
    assert len(found) == NUM_STEPS
    assert found[0] < 0.3
    assert fmean(found[-10:]) > 0.8


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_the_reward_rises_from_below_0_3_to_above_0_8(algorithm: str, tmp_path: Path) -> None:
    check_learning(rewards(tmp_path, algorithm, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4])
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_the_reward_rises_with_other_seeds_too(algorithm: str, seed: int, tmp_path: Path) -> None:
    check_learning(rewards(tmp_path, algorithm, seed))
