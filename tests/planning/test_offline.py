"""Plans of training on offline data: one model, no rollout, and pairs that stay together."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from fakes.machines import LLAMA_7B, QWEN_05B, fits, only_pool, planned, recorded

from rl_compat.config.types import (
    AlgorithmConfig,
    DPOConfig,
    ModelConfig,
    PlanConfig,
    RolloutConfig,
    RunConfig,
    SFTConfig,
    TrainerConfig,
)
from rl_compat.errors import DoesNotFitError
from rl_compat.planning.report import size_lines
from rl_compat.planning.shapes.known import SMOLLM2_135M
from rl_compat.planning.types import Plan
from rl_compat.planning.workload import run_workload
from rl_compat.units import GIB

NAMES = ("sft", "dpo", "kto", "reward_model")


def config(name: str, **parts: object) -> RunConfig:
    return RunConfig(algorithm=AlgorithmConfig(name=name), **parts)


def phases(plan: Plan) -> dict[str, dict[str, int]]:
    return {budget.phase: dict(budget.items) for budget in only_pool(plan).budgets}


@pytest.mark.parametrize("card", ["p40", "t4", "a100", "laptop_no_gpu"])
@pytest.mark.parametrize("name", NAMES)
def test_one_model_is_planned_on_every_card(name: str, card: str) -> None:
    plan = planned(config(name), recorded(card), SMOLLM2_135M)

    assert set(plan.roles) == {"actor"}
    assert fits(plan)
    assert not {"rollout_engine", "rollout_dtype", "cuda_graphs", "sleep_between"} & only_pool(plan).choices.keys()
    reference = ["reference"] if name in ("dpo", "kto") else []
    assert list(phases(plan)) == [*reference, "evaluation", "actor_update"]


def test_a_comparison_without_a_reference_has_no_phase_for_it() -> None:
    free = RunConfig(algorithm=AlgorithmConfig(name="dpo", dpo=DPOConfig(reference_free=True)))
    assert "reference" not in phases(planned(free, recorded("p40"), SMOLLM2_135M))


def test_a_pair_fits_into_a_micro_batch() -> None:
    tight = config("dpo", plan=PlanConfig(max_tokens_per_micro_batch=2 * 768))
    actor = planned(tight, recorded("p40"), SMOLLM2_135M).roles["actor"]
    assert (actor.max_tokens_per_micro_batch, actor.micro_batch_size >= 2) == (1536, True)
    one = config("dpo", trainer=TrainerConfig(batch_size=1, mini_batch_size=1))
    assert planned(one, recorded("p40"), SMOLLM2_135M).roles["actor"].micro_batch_size == 2


def test_a_reward_model_has_no_logits_and_no_output_matrix() -> None:
    update = {name: phases(planned(config(name), recorded("p40"), QWEN_05B))["actor_update"] for name in NAMES}
    assert "logits" in update["dpo"]
    assert "logits" not in update["reward_model"]
    untied = replace(QWEN_05B, tie_word_embeddings=False)
    policy, scorer = (
        phases(planned(config(name), recorded("p40"), untied))["actor_update"]["actor weights"]
        for name in ("dpo", "reward_model")
    )
    assert policy - scorer == pytest.approx(4 * untied.embedding_parameters, rel=0.01)


def test_packing_needs_room_for_its_mask() -> None:
    packed = RunConfig(algorithm=AlgorithmConfig(name="sft", sft=SFTConfig(packing=True)))
    plans = [planned(one, recorded("p40"), SMOLLM2_135M) for one in (config("sft"), packed)]
    assert ["attention mask" in phases(plan)["actor_update"] for plan in plans] == [False, True]


def test_settings_of_the_rollout_do_not_matter() -> None:
    rollout = RolloutConfig(engine="vllm", gpu_memory_utilization=0.99, max_num_batched_tokens=1)
    plan = planned(config("sft", rollout=rollout), recorded("p40"), SMOLLM2_135M)
    assert phases(plan) == phases(planned(config("sft"), recorded("p40"), SMOLLM2_135M))


def test_sizes_are_told_in_rows() -> None:
    asked = config("dpo", trainer=TrainerConfig(batch_size=8, mini_batch_size=4))
    workload = run_workload(asked, {"actor": SMOLLM2_135M})
    lines = list(size_lines(planned(asked, recorded("p40"), SMOLLM2_135M), workload))
    assert re.findall(r"\d+", lines[0]) == ["8", "2", "16", "2", "4", "8"]
    assert not any(line.startswith("rollout") for line in lines)


def test_preferences_need_less_than_two_models() -> None:
    """The reference is the model itself, so that what PPO with a reference cannot do fits."""
    plan = planned(config("dpo"), recorded("p40"), QWEN_05B)
    assert only_pool(plan).peak_bytes < 24 * GIB
    assert "reference weights" not in phases(plan)["actor_update"]


def test_what_does_not_fit_says_what_would() -> None:
    with pytest.raises(DoesNotFitError) as refused:
        planned(config("sft", model=ModelConfig(path="large")), recorded("p40"), LLAMA_7B)
    assert "model.lora_rank=16" in str(refused.value.hint)
