"""The verdict from a configuration is the engine's verdict on the model itself."""

from __future__ import annotations

import pytest
from fakes.machines import A100, QWEN_05B, machine, only_pool, planned
from transformers import AutoConfig

from rl_compat.config.types import RolloutConfig, RunConfig
from rl_compat.errors import HardwareError
from rl_compat.planning.shapes.decoder_families import (
    ACTIVATIONS,
    DESCRIBED_FAMILIES,
    native_obstacle,
    own_forward_obstacle,
)
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.rollout.kernels import decode_ops
from rl_compat.rollout.native.decoder_spec import FAMILIES

SIZES = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
}


def shape(**values: object) -> ModelShape:
    return ModelShape.from_config(SIZES | {"model_type": "llama"} | values)


def test_the_planner_and_the_engine_know_the_same_families_and_activations() -> None:
    assert set(DESCRIBED_FAMILIES) == set(FAMILIES)
    assert set(ACTIVATIONS) == set(decode_ops.ACTIVATIONS)


@pytest.mark.parametrize("family", DESCRIBED_FAMILIES)
def test_a_described_family_in_its_usual_form_has_no_obstacle(family: str) -> None:
    config = AutoConfig.for_model(family).to_dict()

    assert native_obstacle(config) is None
    assert own_forward_obstacle(config) is None


@pytest.mark.parametrize(
    ("config", "obstacle"),
    [
        ({"model_type": "olmo2"}, "`olmo2` is not among the families that it describes"),
        (
            {"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "its rotary angles are of kind `dynamic`, which depend on the length",
        ),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_type": "longrope"}}},
            "its rotary angles are of kind `longrope`, which depend on the length",
        ),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "its attention looks ahead"),
        ({"model_type": "llama", "hidden_act": "xielu"}, "its activation is `xielu`"),
    ],
)
def test_what_needs_the_models_own_forward_is_named(config: dict[str, object], obstacle: str) -> None:
    assert own_forward_obstacle(config) == obstacle
    assert native_obstacle(config) is None


@pytest.mark.parametrize(
    ("config", "obstacle"),
    [
        ({"is_encoder_decoder": True}, "it is an encoder-decoder model"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "it has layers of kind `linear_attention`"),
        ({"num_kv_shared_layers": 10}, "its layers share keys and values"),
    ],
)
def test_a_model_that_native_cannot_run_is_planned_for_transformers_with_the_reason(
    config: dict[str, object], obstacle: str
) -> None:
    plan = planned(RunConfig(), machine(A100, vllm="0.24.0"), shape(**config))

    choice = only_pool(plan).choices["rollout_engine"]
    assert plan.rollout.engine == choice.value == "transformers"
    assert obstacle in choice.reason
    rejected = {item.value: item for item in choice.rejected}
    assert obstacle in rejected["native"].reasons[0]
    assert "`native`" in rejected["vllm"].reasons[0]
    assert not rejected["native"].works and not rejected["vllm"].works


def test_native_asked_for_a_model_that_it_cannot_run_is_refused_before_anything_loads() -> None:
    asked = RunConfig(rollout=RolloutConfig(engine="native"))

    with pytest.raises(
        HardwareError, match=r"`rollout.engine=native` cannot run this model: its layers share"
    ) as error:
        planned(asked, machine(A100), shape(num_kv_shared_layers=10))

    assert error.value.hint == "set `rollout.engine=transformers`"


def test_a_plan_says_when_native_must_call_the_models_own_forward() -> None:
    other = planned(RunConfig(), machine(A100), shape(model_type="olmo2"))
    known = planned(RunConfig(), machine(A100), QWEN_05B)

    note = "rollout engine `native` calls the model's own forward, which is slower: `olmo2` is not among the families"
    assert [text for text in other.notes if note in text]
    assert not [text for text in known.notes if "own forward" in text]
