"""The settings are read from the dataclasses."""

from __future__ import annotations

import re

from rl_compat.config.rules.ranges import NOT_EMPTY, RANGES
from rl_compat.config.rules.validate import problems
from rl_compat.config.settings import describe_fields, settings, values_of
from rl_compat.config.types import RunConfig


def test_every_field_is_a_setting_with_its_sentence() -> None:
    assert settings()["trainer.batch_size"].default == 32
    assert settings()["trainer.batch_size"].sentence == "prompts per step"
    assert describe_fields()["model.lora_dropout"] == ""
    assert list(values_of(RunConfig())) == list(settings())


def test_there_are_at_most_a_hundred_and_sixty_settings() -> None:
    assert len(settings()) <= 160


def test_the_defaults_are_valid() -> None:
    assert list(problems(RunConfig())) == []


def test_every_number_has_a_range() -> None:
    unranged = {
        "algorithm.cost_limit",
        "algorithm.entropy_coef",
        "algorithm.clip_cov_low",
        "algorithm.clip_cov_high",
        "algorithm.reward_part_weights",
        "reward.model_weight",
        "reward.weights",
        "cost.model_weight",
        "cost.weights",
    }
    numbers = {key for key, setting in settings().items() if re.search(r"\b(int|float)\b", str(setting.hint))}

    assert numbers - set(RANGES) == unranged
    assert set(RANGES) | set(NOT_EMPTY) <= set(settings())
