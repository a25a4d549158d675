"""From the rewards of a step to advantages, by the name of the algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_compat.algorithms.advantages import AdvantageEstimate, gae, reinforce_plus_plus
from rl_compat.algorithms.group_advantages import (
    gpg,
    grpo,
    grpo_passk,
    opo,
    reinforce_plus_plus_baseline,
    rloo,
)
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
    """Advantages within groups, from `response_rewards`."""
    return grpo(
        rewards=response_rewards(inputs),
        groups=inputs.groups,
        response_mask=inputs.response_mask,
        normalize_by_std=inputs.normalize_by_std,
        scored=inputs.scored,
    )


def passk_advantages(inputs: AdvantageInputs) -> AdvantageEstimate:
    """The lead of each group's best, from `response_rewards`."""
    return grpo_passk(
        rewards=response_rewards(inputs),
        groups=inputs.groups,
        response_mask=inputs.response_mask,
        normalize_by_std=inputs.normalize_by_std,
        scored=inputs.scored,
    )


def reinforce_plus_plus_advantages(inputs: AdvantageInputs) -> AdvantageEstimate:
    return reinforce_plus_plus(
        token_rewards=inputs.token_rewards,
        response_mask=inputs.response_mask,
        gamma=inputs.gamma,
        scored=inputs.scored,
    )


def response_rewards(inputs: AdvantageInputs) -> Tensor:
    """[B]: the sum of each response's token rewards, which a KL penalty is part of.

    A response without tokens has none, and is compared by its outcome reward.
    """
    summed = masked_sum(inputs.token_rewards, mask=inputs.response_mask, dim=1)
    return torch.where(inputs.response_mask.any(1), summed, inputs.rewards)


Estimator = Callable[[AdvantageInputs], AdvantageEstimate]


def _compared(estimate: Callable[..., AdvantageEstimate]) -> Estimator:
    """An estimator that needs `response_rewards` and their groups only."""

    def advantages(inputs: AdvantageInputs) -> AdvantageEstimate:
        return estimate(
            rewards=response_rewards(inputs),
            groups=inputs.groups,
            response_mask=inputs.response_mask,
            scored=inputs.scored,
        )

    return advantages


ESTIMATORS: Mapping[str, Estimator] = {
    "ppo": ppo_advantages,
    "grpo": grpo_advantages,
    "dr_grpo": grpo_advantages,
    "rloo": _compared(rloo),
    "reinforce_plus_plus": reinforce_plus_plus_advantages,
    "reinforce_plus_plus_baseline": _compared(reinforce_plus_plus_baseline),
    "opo": _compared(opo),
    "grpo_passk": passk_advantages,
    "gpg": _compared(gpg),
}
"by `algorithm.name`"
