from __future__ import annotations

import pytest

from rl_compat.rewards.builtin.arithmetic import arithmetic


@pytest.mark.parametrize(
    ("response", "reward", "found"),
    [
        ("42", 1.0, True),
        (" 42\n", 1.0, True),
        ("042", 0.0, True),
        ("41", 0.0, True),
        ("42.", 0.0, False),
        ("=42", 0.0, False),
        ("", 0.0, False),
    ],
)
def test_only_the_digits_themselves_count(response: str, reward: float, found: bool) -> None:
    outcome = arithmetic(response, "42")
    assert (outcome.reward, outcome.correct, outcome.answer_found) == (reward, reward == 1.0, found)


def test_a_ground_truth_may_be_a_number() -> None:
    assert arithmetic("42", 42).reward == 1.0
