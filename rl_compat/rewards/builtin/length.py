"""Rewards for the length of a response, and a penalty for repetition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import cos, pi
from typing import Any

from rl_compat.rewards.types import RewardOutcome


def overlong(buffer: int) -> Callable[..., RewardOutcome]:
    """The penalty on responses close to the maximum length: 0, then falling linearly to -1 (Yu et al. 2025, "DAPO").

    min(-(length - (max_response_length - buffer)) / buffer, 0), in tokens. It continues to fall beyond the maximum.
    """

    def penalty(
        response: str, ground_truth: Any = None, *, response_ids: Sequence[int], max_response_length: int
    ) -> RewardOutcome:
        return RewardOutcome(reward=min(-(len(response_ids) - (max_response_length - buffer)) / buffer, 0.0))

    return penalty


def repetition(
    response: str, ground_truth: Any = None, *, ngram: int = 3, response_ids: Sequence[int] | None = None
) -> RewardOutcome:
    """Minus the fraction of n-grams that occurred before, in (-1, 0] (Yeo et al. 2025).

    Counted in tokens, or in words if only the text is known. 0 for a response with fewer than `ngram` of them.
    """
    units: Sequence[Any] = response.split() if response_ids is None else response_ids
    total = len(units) - ngram + 1
    if total <= 0:
        return RewardOutcome(reward=0.0)
    distinct = len({tuple(units[i : i + ngram]) for i in range(total)})
    return RewardOutcome(reward=distinct / total - 1.0)


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
) -> RewardOutcome:
    """Favours short correct responses and long wrong ones (Yeo et al. 2025, "Demystifying Long CoT").

    The reward follows half a cosine from `short` at length 0 to `long` at `max_response_length` tokens L:
    long + (short - long) (1 + cos(pi length / L)) / 2. It is `exceeded` for a response of L tokens, which was
    truncated. `correct` is the verdict of the functions that judge correctness.
    """
    length = len(response_ids)
    if length >= max_response_length:
        return RewardOutcome(reward=exceeded)
    short, long = (correct_short, correct_long) if correct else (wrong_short, wrong_long)
    return RewardOutcome(reward=long + 0.5 * (short - long) * (1.0 + cos(pi * length / max_response_length)))
