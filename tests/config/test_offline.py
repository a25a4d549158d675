"""Settings of training on offline data: short forms, refused values, and settings without effect."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.facts import facts

from rl_compat.config.load import load_config
from rl_compat.config.rules.conflicts import problems
from rl_compat.config.rules.inert import inert_settings
from rl_compat.config.settings import build
from rl_compat.config.types import AlgorithmConfig, PlanConfig, RunConfig, TrainerConfig
from rl_compat.errors import ConfigError


def without_effect(*arguments: str) -> dict[str, str]:
    """Key to reason."""
    return {line.key: line.reason for line in load_config(None, arguments).report if line.verdict == "without effect"}


def refused(config: RunConfig) -> set[str]:
    (problem,) = problems(config)
    return facts(problem.message)


def test_the_name_alone_says_the_algorithm() -> None:
    loaded = load_config(None, ["algorithm=dpo"])
    assert loaded.config.algorithm.name == "dpo"
    assert loaded.config == load_config(None, ["algorithm.name=dpo"]).config
    with pytest.raises(ConfigError) as stop:
        load_config(None, ["algorithm=reward_modle"])
    assert "algorithm.name" in facts(stop.value.message)
    assert facts(stop.value.hint) == {"reward_model"}


def test_what_generates_and_rewards_has_no_effect() -> None:
    found = without_effect(
        "algorithm=sft",
        "rollout.top_k=5",
        "reward.functions=gsm8k",
        "algorithm.group_size=4",
        "optimizer.critic_lr=1e-3",
        "algorithm.dpo.beta=0.2",
        "data.streaming=true",
        "trainer.num_steps=3",
    )
    assert found.keys() == {
        "rollout.top_k",
        "reward.functions",
        "algorithm.group_size",
        "optimizer.critic_lr",
        "algorithm.dpo.beta",
        "data.streaming",
    }
    assert facts(found["rollout.top_k"]) == {"algorithm.name=sft"}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("dpo", "algorithm.kto.desirable_weight=2"),
        ("dpo", "algorithm.reward_model.margin=1"),
        ("dpo", "algorithm.sft.packing=true"),
        ("kto", "algorithm.dpo.loss=ipo"),
        ("reward_model", "algorithm.dpo.beta=0.5"),
        ("grpo", "algorithm.dpo.beta=0.5"),
        ("grpo", "algorithm.sft.loss_on=all"),
    ],
)
def test_a_setting_of_another_algorithm_has_no_effect(name: str, key: str) -> None:
    group = ["algorithm.group_size=4"] if name == "grpo" else []
    assert without_effect(f"algorithm.name={name}", key, *group).keys() == {key.partition("=")[0]}


def test_only_the_logistic_loss_smooths_its_labels() -> None:
    assert (
        "algorithm.dpo.loss=sigmoid"
        in without_effect("algorithm=dpo", "algorithm.dpo.loss=hinge", "algorithm.dpo.label_smoothing=0.1")[
            "algorithm.dpo.label_smoothing"
        ]
    )
    assert not without_effect("algorithm=dpo", "algorithm.dpo.label_smoothing=0.1")


def test_settings_that_every_training_has_are_still_checked() -> None:
    assert without_effect("algorithm=sft", "model.lora_alpha=3").keys() == {"model.lora_alpha"}
    assert inert_settings(RunConfig(algorithm=AlgorithmConfig(name="sft")), ["trainer.num_epochs"]) == ()


def test_pairs_are_computed_together() -> None:
    config = RunConfig(algorithm=AlgorithmConfig(name="dpo"), plan=PlanConfig(micro_batch_size=1))
    assert refused(config) == {"plan.micro_batch_size", "1", "algorithm.name=dpo"}
    tight = replace(config, plan=PlanConfig(max_tokens_per_micro_batch=1000))
    assert {"plan.max_tokens_per_micro_batch", "1000", "1536"} <= refused(tight)


def test_kto_needs_a_mean_over_a_mini_batch() -> None:
    config = RunConfig(algorithm=AlgorithmConfig(name="kto"), trainer=TrainerConfig(batch_size=4, mini_batch_size=1))
    assert refused(config) == {"trainer.mini_batch_size", "1", "algorithm.name=kto"}


@pytest.mark.parametrize(
    ("key", "value"),
    [("dpo.beta", 0.0), ("kto.beta", 0.0), ("dpo.label_smoothing", 0.5), ("reward_model.margin", -1.0)],
)
def test_numbers_have_their_range(key: str, value: float) -> None:
    assert {f"algorithm.{key}", str(value)} <= refused(build({"algorithm.name": "dpo", f"algorithm.{key}": value}))
