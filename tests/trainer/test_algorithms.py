"""Every algorithm of the table trains by its settings alone, and what it says in its metrics is its own."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from fakes.runs import COST, settings, steps, train

from rl_compat.algorithms.estimators import ESTIMATORS
from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.load import load_config

SMALL_STEPS = {"data.val_files": "", "trainer.batch_size": 4, "trainer.mini_batch_size": 2, "trainer.save_every": 0}


def algorithm(name: str) -> dict[str, object]:
    """The settings that an algorithm needs beside its name."""
    groups = {"algorithm.group_size": 4} if ALGORITHMS[name].needs_groups else {}
    return {"algorithm.name": name} | groups | ({"cost.functions": COST} if ALGORITHMS[name].needs_cost else {})


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_algorithm_trains_by_its_name(name: str, llama_folder: Path, tmp_path: Path) -> None:
    train(settings(llama_folder, tmp_path / "run", SMALL_STEPS, algorithm(name), num_steps=2))

    found = steps(tmp_path / "run")
    assert list(found) == [1, 2]
    for metrics in found.values():
        assert all(math.isfinite(value) for value in metrics.values())
        assert metrics["actor/grad_norm"] > 0
        assert ("critic/vf_loss" in metrics) == ALGORITHMS[name].needs_critic
        assert ("cost_critic/vf_loss" in metrics) == ALGORITHMS[name].needs_cost
        assert "rollout_corr/kl" in metrics


@pytest.mark.parametrize(
    "loss", ["gspo", "cispo", "sapo", "clip_cov", "kl_cov", "geo_mean", "dro", "dppo_tv", "dppo_kl"]
)
def test_a_policy_loss_trains_by_its_name(loss: str, llama_folder: Path, tmp_path: Path) -> None:
    chosen = {**algorithm("grpo"), "algorithm.policy_loss": loss, "algorithm.clip_cov_low": -1.0}
    train(settings(llama_folder, tmp_path / "run", SMALL_STEPS, chosen, num_steps=1))

    metrics = steps(tmp_path / "run")[1]
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["actor/grad_norm"] > 0


def test_a_name_sets_what_is_not_given() -> None:
    loaded = load_config(None, ["algorithm.name=dr_grpo", "algorithm.group_size=4"])
    assert not loaded.config.algorithm.normalize_by_std
    assert loaded.config.algorithm.loss_aggregation == "seq-mean-token-sum-norm"
    assert loaded.sources["algorithm.normalize_by_std"] == "algorithm"

    given = load_config(None, ["algorithm.name=dr_grpo", "algorithm.group_size=4", "algorithm.normalize_by_std=true"])
    assert given.config.algorithm.normalize_by_std
    assert given.sources["algorithm.normalize_by_std"] == "command line"
