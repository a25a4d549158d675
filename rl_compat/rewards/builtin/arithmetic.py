"""The reward for the generated sums: the exact digits."""

from __future__ import annotations

from typing import Any

from rl_compat.rewards.types import RewardOutcome, judged


def arithmetic(response: str, ground_truth: Any) -> RewardOutcome:
    """1 if the response, stripped of white space, equals the ground truth digit for digit, else 0."""
    answer = response.strip()
    is_number = answer.isascii() and answer.isdigit()
    return judged(answer == str(ground_truth), answer if is_number else None)
