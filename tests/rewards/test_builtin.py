from __future__ import annotations

from typing import Any

import pytest

from rl_compat.data.load import Row
from rl_compat.errors import DataError
from rl_compat.rewards.builtin import BUILTINS, check_rows, check_sources
from rl_compat.rewards.sources import BUILTIN_BY_SOURCE


def _rows(*sources_and_truths: tuple[str, Any]) -> list[Row]:
    return [
        Row(prompt="p", data_source=source, ground_truth=truth, row=i)
        for i, (source, truth) in enumerate(sources_and_truths)
    ]


def test_unknown_data_sources_are_reported_with_rows_known_ones_and_the_way_out() -> None:
    """A-DATA-04"""
    rows = _rows(("", "1"), ("/data/gsm8k", "1"), ("openai/gsm8k", "1"))
    with pytest.raises(DataError) as error:
        check_rows(rows, ("auto",))
    assert error.value.message.startswith(
        "no reward belongs to the data source ``, `/data/gsm8k` (2 rows, counted from 0: 0, 1): "
        "known are `openai/gsm8k`, `rlc/arithmetic`, `lighteval/MATH`"
    )
    assert "for `/data/gsm8k` did you mean `openai/gsm8k`" in str(error.value.hint)
    assert "reward.functions=gsm8k" in str(error.value.hint)
    assert "my_rewards.py:my_function" in str(error.value.hint)


def test_a_named_reward_does_not_ask_for_the_data_source() -> None:
    check_rows(_rows(("", "1"), ("/data/gsm8k", "2")), ("gsm8k", "gsm8k_format"))
    check_rows(_rows(("", None)), ("mine.py:f",))


def test_distinct_sources_are_checked_for_auto_only() -> None:
    with pytest.raises(DataError, match="data source `nowhere`"):
        check_sources(["openai/gsm8k", "nowhere"], ("auto",))
    check_sources(["nowhere"], ("gsm8k",))


@pytest.mark.parametrize("functions", [("auto",), ("gsm8k",), ("gsm8k_format", "gsm8k_strict")])
def test_a_row_without_ground_truth_is_named(functions: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="row 1 has no ground truth"):
        check_rows(_rows(("openai/gsm8k", "1"), ("openai/gsm8k", None)), functions)


def test_a_ground_truth_that_is_no_number_is_named() -> None:
    with pytest.raises(DataError, match="row 0 has the ground truth `many`, and the reward `gsm8k` needs a number"):
        check_rows(_rows(("openai/gsm8k", "many")), ("auto",))


def test_every_source_has_a_reward_that_exists() -> None:
    assert set(BUILTIN_BY_SOURCE.values()) <= set(BUILTINS)
