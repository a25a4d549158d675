"""Every algorithm of the table trains by its settings alone, and what it says in its metrics is its own."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from fakes.reward_models import save_reward_model
from fakes.runs import COST, Lines, settings, steps, train

from rl_compat.algorithms.advantages.estimators import ESTIMATORS
from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.load import load_config
from rl_compat.errors import RewardError
from rl_compat.planning.serialize import load_plan

SMALL_STEPS = {"data.val_files": "", "trainer.batch_size": 4, "trainer.mini_batch_size": 2, "trainer.save_every": 0}


def algorithm(name: str) -> dict[str, object]:
    """The settings that an algorithm needs in addition to its name."""
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


OFF_POLICY: dict[str, dict[str, object]] = {
    "token weights": {**algorithm("grpo"), "off_policy.importance": "token", "off_policy.truncate": 2},
    "sequence weights": {
        **algorithm("rloo"),
        "off_policy.importance": "sequence",
        "off_policy.band": "0.5,2",
        "off_policy.normalize": "true",
    },
    "rejection": {**algorithm("grpo"), "off_policy.reject": "token_k1:0.8_1.25,seq_mean_k3:0.02"},
    "bypass": {**algorithm("grpo"), "off_policy.bypass": "true", "off_policy.reject": "seq_max_k2:1"},
    "V-trace": {**algorithm("ppo"), "off_policy.vtrace.enabled": "true"},
}


@pytest.mark.parametrize("name", OFF_POLICY)
def test_off_policy_correction_changes_little_where_the_sampler_is_the_trainer(
    name: str, llama_folder: Path, tmp_path: Path
) -> None:
    """The two differ in rounding alone, so weights are 1 and nothing is rejected."""
    train(settings(llama_folder, tmp_path / "run", SMALL_STEPS, OFF_POLICY[name], num_steps=1))

    metrics = steps(tmp_path / "run")[1]
    assert metrics["actor/grad_norm"] > 0
    if "weights" in name:
        assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(1, abs=1e-4)
    if "off_policy.reject" in OFF_POLICY[name]:
        assert metrics["rollout_corr/rollout_rs_masked_fraction"] == 0.0
    assert ("training/rollout_probs_diff_max" in metrics) == (name != "bypass")


def test_gdpo_compares_numbers_that_a_function_names(llama_folder: Path, tmp_path: Path) -> None:
    function = tmp_path / "two_rewards.py"
    function.write_text(
        "def compute_score(solution_str):\n"
        "    digits = sum(c.isdigit() for c in solution_str)\n"
        "    return {'score': digits / 8, 'brief': float(8 - len(solution_str))}\n"
    )
    parts = {
        **algorithm("gdpo"),
        "reward.functions": f"{function}:compute_score",
        "algorithm.gdpo.parts": "compute_score,brief",
        "algorithm.gdpo.weights": "1,0.5",
    }
    train(settings(llama_folder, tmp_path / "run", SMALL_STEPS, parts, num_steps=1))
    assert steps(tmp_path / "run")[1]["actor/grad_norm"] > 0

    with pytest.raises(RewardError, match="`brie`"):
        wrong = parts | {"algorithm.gdpo.parts": "compute_score,brie"}
        train(settings(llama_folder, tmp_path / "wrong", SMALL_STEPS, wrong, num_steps=1))


def test_a_step_in_which_no_prompt_had_two_rewards_is_said_once(llama_folder: Path, tmp_path: Path) -> None:
    """A-ALG-02: such a run is not broken, its task is too hard or too easy."""
    hopeless = {
        **algorithm("dapo"),
        "reward.functions": "arithmetic",
        "reward.overlong_buffer": 0,
        "algorithm.max_sampling_rounds": 2,
    }
    reporter = Lines()
    train(settings(llama_folder, tmp_path / "run", SMALL_STEPS, hopeless, num_steps=2), reporter=reporter)

    said = [line for line in reporter.lines if "no prompt had two different rewards" in line]
    assert len(said) == 1
    assert "of 8 prompts in 2 rounds" in said[0]


def test_a_cost_model_stands_beside_a_reward_model(llama_folder: Path, tmp_path: Path) -> None:
    """Two models of their own, each with its role in the plan; the cost is measured in validation too."""
    reward, cost = (save_reward_model(tmp_path / name, seed=seed) for seed, name in enumerate(("reward", "cost")))
    learned = {
        "reward.functions": "",
        "reward.model": reward,
        "cost.model": cost,
        "algorithm.name": "ppo_lagrangian",
        "algorithm.whiten_advantages": "false",
        "algorithm.critic_warmup_steps": 1,
    }
    outcome = train(settings(llama_folder, tmp_path / "run", learned, num_steps=2))

    plan = load_plan(tmp_path / "run" / "plan.json")
    assert set(plan.roles) == {"actor", "critic", "cost_critic", "reward", "cost"}
    first, second = steps(tmp_path / "run").values()
    assert first["cost/score/mean"] == pytest.approx(first["cost/model"])
    assert first["cost/score/mean"] != first["critic/score/mean"]
    assert "actor/grad_norm" not in first, "the actor waits for both critics"
    assert first["cost_critic/grad_norm"] > 0
    assert second["cost/multiplier"] == first["cost/multiplier"], "and so does the multiplier"
    assert outcome.after is not None
    assert "val-aux/rlc/arithmetic/cost/mean@1" in outcome.after.metrics()


@pytest.mark.parametrize(
    "loss", ["gspo", "cispo", "sapo", "clip_cov", "kl_cov", "geo_mean", "dro", "dppo_tv", "dppo_kl"]
)
def test_a_policy_loss_trains_by_its_name(loss: str, llama_folder: Path, tmp_path: Path) -> None:
    chosen = {**algorithm("grpo"), "algorithm.policy_loss": loss, "algorithm.clip_cov.low": -1.0}
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
