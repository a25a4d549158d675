"""The algorithms by name: what each needs, and how it makes advantages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_compat.algorithms.advantages import AdvantageEstimate, gae
from rl_compat.algorithms.group_advantages import grpo
from rl_compat.algorithms.masking import masked_sum, whiten


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    """Everything that an algorithm may make advantages from, for all responses of a step."""

    token_rewards: Tensor
    "[B, T] outcome reward on the last token, minus the KL penalty when there is one"
    rewards: Tensor
    "[B] outcome reward"
    response_mask: Tensor
    "[B, T] bool"
    groups: Tensor
    "[B] int64"
    values: Tensor | None = None
    "[B, T], when the algorithm has a critic"
    scored: Tensor | None = None
    "[B] bool: False on rows that have no reward; all have one when not given"
    gamma: float = 1.0
    gae_lambda: float = 1.0
    whiten: bool = True
    normalize_by_std: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One row of the table."""

    name: str
    needs_critic: bool
    needs_groups: bool
    "compares the responses of one prompt, so it needs several of each"
    advantages: Callable[[AdvantageInputs], AdvantageEstimate]


def ppo_advantages(inputs: AdvantageInputs) -> AdvantageEstimate:
    """Advantages by GAE, whitened over the step if asked. Rows without a reward get 0 for advantages and returns."""
    assert inputs.values is not None
    mask = inputs.response_mask if inputs.scored is None else inputs.response_mask & inputs.scored[:, None]
    estimate = gae(
        token_rewards=inputs.token_rewards,
        values=inputs.values,
        response_mask=mask,
        gamma=inputs.gamma,
        gae_lambda=inputs.gae_lambda,
    )
    return estimate._replace(advantages=whiten(estimate.advantages, mask=mask)) if inputs.whiten else estimate


def grpo_advantages(inputs: AdvantageInputs) -> AdvantageEstimate:
    """Advantages within groups, from the sum of each response's token rewards.

    A response without tokens has no token rewards and is compared by its outcome reward.
    """
    mask = inputs.response_mask
    summed = masked_sum(inputs.token_rewards, mask=mask, dim=1)
    return grpo(
        rewards=torch.where(mask.any(1), summed, inputs.rewards),
        groups=inputs.groups,
        response_mask=mask,
        normalize_by_std=inputs.normalize_by_std,
        scored=inputs.scored,
    )


ALGORITHMS = {
    "ppo": Algorithm(name="ppo", needs_critic=True, needs_groups=False, advantages=ppo_advantages),
    "grpo": Algorithm(name="grpo", needs_critic=False, needs_groups=True, advantages=grpo_advantages),
}
