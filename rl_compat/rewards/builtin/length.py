"""Rewards for the length of a response and against repetition."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi
from typing import Any

from rl_compat.rewards.types import Outcome


def overlong_penalty(length: int, *, max_length: int, buffer: int) -> float:
    """0 up to `max_length - buffer` tokens, then falling linearly to -1 at `max_length` (Yu et al. 2025, "DAPO").

    min(-(length - (max_length - buffer)) / buffer, 0); beyond `max_length` it goes on falling.
    """
    return min(-(length - (max_length - buffer)) / buffer, 0.0)


def repetition(
    response: str, ground_truth: Any = None, *, ngram: int = 3, response_ids: Sequence[int] | None = None
) -> Outcome:
    """Minus the share of n-grams that have been there before, in (-1, 0] (Yeo et al. 2025).

    Over tokens, or words where only the text is known. 0 for a response with fewer than `ngram` of them.
    """
    units: Sequence[Any] = response.split() if response_ids is None else response_ids
    total = len(units) - ngram + 1
    if total <= 0:
        return Outcome(reward=0.0)
    distinct = len({tuple(units[i : i + ngram]) for i in range(total)})
    return Outcome(reward=distinct / total - 1.0)


def cosine_length(
    response: str,
    ground_truth: Any = None,
    *,
    correct: bool,
    response_ids: Sequence[int],
    max_response_length: int,
    correct_short: float = 2.0,
    correct_long: float = 1.0,
    wrong_short: float = -10.0,
    wrong_long: float = 0.0,
    exceeded: float = -10.0,
) -> Outcome:
    """Short answers are better when right, long ones when wrong (Yeo et al. 2025, "Demystifying Long CoT").

    From the `short` value at no token along half a cosine to the `long` value at `max_response_length` tokens L:
    long + (short - long) (1 + cos(pi length / L)) / 2; `exceeded` for a response of L tokens, which was cut.
    `correct` is what the functions before have judged.
    """
    length = len(response_ids)
    if length >= max_response_length:
        return Outcome(reward=exceeded)
    short, long = (correct_short, correct_long) if correct else (wrong_short, wrong_long)
    return Outcome(reward=long + 0.5 * (short - long) * (1.0 + cos(pi * length / max_response_length)))
