"""Workloads: what a run, an evaluation and the roles of a script ask of the planner."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machines import LLAMA_7B, PPO, QWEN_05B, only_pool, recorded

from rl_compat.config.types import (
    AlgorithmConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    PlanConfig,
    RewardConfig,
    RunConfig,
)
from rl_compat.errors import DoesNotFitError
from rl_compat.planning.fit import make_plan
from rl_compat.planning.memory.budget import checkpoint_bytes
from rl_compat.planning.workload import evaluation_workload, run_requests, run_workload, shared_workload

SHAPES = {"actor": QWEN_05B}


def test_a_run_has_the_models_and_phases_of_its_algorithm() -> None:
    workload = run_workload(PPO, SHAPES)

    assert list(workload.models) == ["actor", "critic", "reference"]
    assert [(phase.name, phase.role, phase.does) for phase in workload.phases] == [
        ("rollout", "actor", "generate"),
        ("logprobs", "actor", "logprobs"),
        ("reference", "reference", "logprobs"),
        ("values", "critic", "score"),
        ("critic_update", "critic", "update"),
        ("actor_update", "actor", "update"),
    ]
    assert workload.generates and workload.trains
    assert not workload.updates("reference") and workload.trainable_parameters("reference") == 0


def test_with_adapters_the_actor_is_its_own_reference() -> None:
    workload = run_workload(replace(PPO, model=ModelConfig(lora_rank=8)), SHAPES)

    assert list(workload.models) == ["actor", "critic"]
    assert [phase.role for phase in workload.phases if phase.name == "reference"] == ["actor"]
    assert workload == run_workload(PPO, SHAPES).with_adapters(8)


def test_an_evaluation_generates_and_scores_and_trains_nothing() -> None:
    config = replace(PPO, reward=RewardConfig(model="a reward model"), optimizer=OptimizerConfig(name="adamw8bit"))
    workload = evaluation_workload(config, SHAPES | {"reward": QWEN_05B})
    plan = make_plan(workload, recorded("p4"), run_requests(config))
    pool = only_pool(plan)

    assert [phase.name for phase in workload.phases] == ["rollout", "reward"]
    assert set(plan.roles) == {"actor", "reward"}
    assert plan.roles["actor"].storage_dtype == "fp32", "as it was trained"
    assert not any("optimizer" in item or item == "gradients" for budget in pool.budgets for item in budget.items)
    assert not {"optimizer", "loss_scaling", "gradient_checkpointing"} & pool.choices.keys()
    assert checkpoint_bytes(workload, plan) == 0


def test_a_model_that_cannot_be_trained_here_can_be_evaluated() -> None:
    config = RunConfig(algorithm=AlgorithmConfig(name="grpo", group_size=2), plan=PlanConfig(offload_optimizer=False))
    shapes = {"actor": LLAMA_7B}

    with pytest.raises(DoesNotFitError):
        make_plan(run_workload(config, shapes), recorded("h100"), run_requests(config))
    plan = make_plan(evaluation_workload(config, shapes), recorded("h100"), run_requests(config))
    assert plan.rollout is not None and plan.rollout.max_num_seqs >= 1


def test_an_evaluation_of_offline_data_measures_and_does_not_update() -> None:
    config = RunConfig(algorithm=AlgorithmConfig(name="dpo"))
    workload = evaluation_workload(config, SHAPES)

    assert [phase.name for phase in workload.phases] == ["reference", "evaluation"]
    assert make_plan(workload, recorded("p40"), run_requests(config)).rollout is None


def test_roles_of_a_script_leave_room_for_each_other() -> None:
    data = DataConfig(max_prompt_length=256, max_response_length=256)
    together = shared_workload(dict.fromkeys(("actor", "critic", "reference"), QWEN_05B), data=data)
    alone = shared_workload({"actor": QWEN_05B}, data=data)

    def actor_update(workload):
        return only_pool(make_plan(workload, recorded("h200"))).budgets[-1].items

    assert {"critic weights", "critic optimizer", "reference weights"} <= actor_update(together).keys()
    assert not {"critic weights", "reference weights"} & actor_update(alone).keys()


def test_a_part_of_a_workload_has_only_its_models_and_phases() -> None:
    part = run_workload(PPO, SHAPES).only(["critic"])

    assert list(part.models) == ["critic"] and part.main_model is QWEN_05B
    assert [phase.name for phase in part.phases] == ["values", "critic_update"]
    assert not part.generates and part.trains
