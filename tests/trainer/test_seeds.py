"""Any non-negative seed trains."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.runs import PPO, settings, steps, train

SEEDED = ("trainer.seed", "rollout.seed", "data.seed")


@pytest.mark.parametrize("seed", [18_446_635, 10**30])
def test_a_large_seed_trains_resumes_and_validates(seed: int, llama_folder: Path, tmp_path: Path) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    seeds = dict.fromkeys(SEEDED, seed) | {"optimizer.schedule": "constant"}
    train(settings(llama_folder, whole, PPO, seeds, num_steps=2))
    for num_steps in (1, 2):
        train(settings(llama_folder, run, PPO, seeds, num_steps=num_steps))
    assert steps(run) == steps(whole)


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_a_large_seed_trains_on_offline_data(algorithm: str, llama_folder: Path, tmp_path: Path) -> None:
    large = dict.fromkeys(("trainer.seed", "data.seed"), 2**63)
    train(settings(llama_folder, tmp_path / "run", large, {"algorithm.name": algorithm}, num_steps=1))
    assert steps(tmp_path / "run")[1]["train/grad_norm"] > 0
