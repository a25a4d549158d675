"""The settings are declared once, in the dataclasses."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pytest

from rl_compat.config.rules.conflicts import problems
from rl_compat.config.settings import replace, sections, settings, values_of
from rl_compat.config.types import RunConfig
from rl_compat.config.values import NotEmpty, Range, violations


def test_every_field_is_a_setting() -> None:
    assert settings()["trainer.batch_size"].default == 32
    assert settings()["trainer.batch_size"].sentence == "prompts per step"
    assert settings()["algorithm.clip_cov.low"].section == "algorithm.clip_cov"
    assert list(values_of(RunConfig())) == list(settings())


def test_every_setting_has_a_sentence_in_one_line() -> None:
    sentences = {key: setting.sentence for key, setting in settings().items()}

    assert [key for key, sentence in sentences.items() if not sentence or sentence.endswith(".")] == []


def test_settings_of_single_algorithms_are_grouped() -> None:
    own = [key for key in settings() if key.count(".") == 1]

    assert len(own) <= 139
    assert len(settings()) <= 176
    assert {"algorithm.dpo", "algorithm.clip_cov", "off_policy.vtrace"} <= set(sections())


def test_the_defaults_are_valid() -> None:
    assert list(problems(RunConfig())) == []


def test_a_copy_changes_only_what_is_named() -> None:
    config = replace(RunConfig(), {"algorithm.kl_controller.target": 0.2, "trainer.seed": 3})
    changed = {key: value for key, value in values_of(config).items() if value != settings()[key].default}

    assert changed == {"algorithm.kl_controller.target": 0.2, "trainer.seed": 3}


def test_every_number_has_a_range() -> None:
    unranged = {
        "model.lora_alpha",
        "algorithm.lagrangian.cost_limit",
        "algorithm.entropy_coef",
        "algorithm.clip_cov.low",
        "algorithm.clip_cov.high",
        "algorithm.gdpo.weights",
        "reward.model_weight",
        "reward.weights",
        "cost.model_weight",
        "cost.weights",
    }
    numbers = {key for key, setting in settings().items() if re.search(r"\b(int|float)\b", str(setting.hint))}

    assert {key for key in numbers if not settings()[key].limits} == unranged


@pytest.mark.parametrize(
    ("value", "annotation", "words"),
    [
        (0, Annotated[int, Range(ge=1)], ["is 0", "at least 1"]),
        (0, Annotated[int, Range(ge=1)] | None, ["is 0", "at least 1"]),
        ((0.9, 1.0), tuple[Annotated[float, Range(ge=0, lt=1)], ...], ["is 1.0", "at least 0 and below 1"]),
        (float("nan"), float, ["nan", "finite"]),
        ("", Annotated[str, NotEmpty()], ["empty"]),
        (("a", ""), tuple[Annotated[str, NotEmpty()], ...], ["empty"]),
        ("3", int, ["'3'"]),
    ],
)
def test_a_broken_limit_is_named_with_the_value(value: Any, annotation: Any, words: list[str]) -> None:
    (violation,) = violations(value, annotation)

    assert all(word in violation for word in words)
