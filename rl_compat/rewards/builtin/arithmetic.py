"""Reward for the generated sums: exactly the digits."""

from __future__ import annotations

from typing import Any

from rl_compat.rewards.types import Outcome


def arithmetic(response: str, ground_truth: Any) -> Outcome:
    """1 when the response, without surrounding space, is the ground truth digit for digit, else 0."""
    answer = response.strip()
    correct = answer == str(ground_truth)
    is_number = answer.isascii() and answer.isdigit()
    return Outcome(
        reward=float(correct),
        correct=correct,
        answer_found=is_number,
        extras={"answer": answer if is_number else None},
    )
