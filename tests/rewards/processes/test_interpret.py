from __future__ import annotations

from collections import OrderedDict
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from rl_compat.rewards.processes.interpret import outcome_of


def _outcome(value: Any) -> Any:
    return outcome_of(value, function="f", row=3)


@pytest.mark.parametrize("value", [1, 1.0, True, np.float32(1), np.array(1.0), torch.tensor(1.0), Fraction(1)])
def test_any_kind_of_number_is_a_reward(value: Any) -> None:
    outcome = _outcome(value)
    assert outcome.reward == 1.0
    assert type(outcome.reward) is float


def test_a_dict_gives_its_score_and_keeps_the_rest_as_plain_values() -> None:
    """A-REW-12"""
    outcome = _outcome(OrderedDict(score=np.float64(0.5), acc=1, tags=np.array([1, 2]), thing=object))
    assert (outcome.reward, outcome.correct) == (0.5, True)
    assert outcome.extras == {"acc": 1, "tags": [1, 2], "thing": "`<class 'object'>`"}


def test_a_dict_without_score_lists_the_keys_found() -> None:
    """A-REW-12"""
    failure = _outcome({"acc": 1, "other": 2}).failure
    assert failure.kind == "misuse"
    for literal in ("`f`", "`acc`, `other`", "row 3", "`score`"):
        assert literal in failure.message


@pytest.mark.parametrize("value", [None, {"score": None}])
def test_none_is_a_failure_that_names_function_and_row(value: Any) -> None:
    """A-REW-07"""
    outcome = _outcome(value)
    assert outcome.reward is None
    assert outcome.failure.kind == "error"
    for literal in ("`f`", "`None`", "row 3"):
        assert literal in outcome.failure.message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"score": float("-inf")}])
def test_a_value_that_is_not_finite_is_a_failure(value: Any) -> None:
    failure = _outcome(value).failure
    assert failure.kind == "error"
    assert "row 3" in failure.message


@pytest.mark.parametrize("value", ["1.0", 1j, [1.0], np.array([1.0]), torch.tensor([1.0, 2.0]), object()])
def test_a_value_of_another_kind_is_misuse(value: Any) -> None:
    failure = _outcome(value).failure
    assert failure.kind == "misuse"
    assert "row 3" in failure.message
