"""A learned reward is a frozen role of its own: weights, a forward pass, and its share of every decision."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machines import PPO, QWEN_05B, fits, only_pool, planned, recorded

from rl_compat.config.types import PlanConfig, RewardConfig
from rl_compat.errors import DoesNotFitError
from rl_compat.planning.memory.budget import weights_bytes
from rl_compat.planning.memory.request import Levers
from rl_compat.planning.shapes.known import SMOLLM2_135M
from rl_compat.planning.types import Plan

WITH_MODEL = replace(PPO, reward=RewardConfig(model="a reward model"))


def _plan(**plan: object) -> Plan:
    config = replace(WITH_MODEL, plan=PlanConfig(**plan))
    return planned(config, recorded("p40"), SMOLLM2_135M, reward=QWEN_05B)


def test_it_has_a_role_and_a_phase_after_the_rollout() -> None:
    plan = _plan()
    assert set(plan.roles) == {"actor", "critic", "reference", "reward"}
    assert plan.roles["reward"].optimizer == plan.roles["reference"].optimizer
    assert not plan.roles["reward"].gradient_checkpointing
    assert [budget.phase for budget in only_pool(plan).budgets][:3] == ["rollout", "reward", "logprobs"]
    assert fits(plan)


def test_its_weights_are_there_in_every_phase_without_an_output_matrix() -> None:
    plan = _plan(frozen_storage_dtype="fp16")
    held = {budget.phase: budget.items["reward weights"] for budget in only_pool(plan).budgets}
    assert set(held.values()) == {held["reward"]}
    assert held["reward"] == pytest.approx(2 * QWEN_05B.trunk_parameters, rel=0.01)
    assert plan.roles["reward"].storage_dtype == "fp16"
    assert "reward weights" not in only_pool(planned(PPO, recorded("p40"), SMOLLM2_135M)).budgets[0].items


def test_idle_it_waits_on_the_host_where_idle_models_do() -> None:
    plan = _plan(offload_idle_models=True)
    held = [budget.phase for budget in only_pool(plan).budgets if "reward weights" in budget.items]
    assert held == ["reward"]
    assert plan.roles["reward"].offload_idle
    assert only_pool(plan).host_bytes >= weights_bytes_of_reward()


def weights_bytes_of_reward() -> int:
    from rl_compat.planning.decide import decide
    from rl_compat.planning.workload import Requests, run_workload

    workload = run_workload(WITH_MODEL, {"actor": SMOLLM2_135M, "reward": QWEN_05B})
    decided = decide(workload, recorded("p40"), Requests())
    return weights_bytes(decided.request, Levers(frozen_dtype="fp16"), "reward")


def test_one_that_does_not_fit_is_refused_before_anything_is_loaded() -> None:
    large = replace(QWEN_05B, num_layers=24 * 60)
    with pytest.raises(DoesNotFitError):
        planned(WITH_MODEL, recorded("p40"), SMOLLM2_135M, reward=large)
