"""The reward for the generated sums: the exact digits."""

from __future__ import annotations

from typing import Any

from rl_compat.rewards.types import RewardOutcome


def arithmetic(response: str, ground_truth: Any) -> RewardOutcome:
    """1 if the response, stripped of white space, equals the ground truth digit for digit, else 0."""
    answer = response.strip()
    correct = answer == str(ground_truth)
    is_number = answer.isascii() and answer.isdigit()
    return RewardOutcome(
        reward=float(correct),
        correct=correct,
        answer_found=is_number,
        extras={"answer": answer if is_number else None},
    )
