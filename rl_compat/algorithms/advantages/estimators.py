"""The advantage estimator of each algorithm, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rl_compat.algorithms.advantages.gae import AdvantageEstimate, gae, reinforce_plus_plus, remax
from rl_compat.algorithms.advantages.group import (
    gdpo,
    gpg,
    grpo,
    grpo_passk,
    opo,
    reinforce_plus_plus_baseline,
    rloo,
)
from rl_compat.algorithms.advantages.token_baseline import optimal_token_baseline, tir_optimal_token_baseline
from rl_compat.algorithms.advantages.vtrace import vtrace
from rl_compat.algorithms.lagrangian import constrained_advantages
from rl_compat.algorithms.masking import masked_sum, whiten


@dataclass(frozen=True, slots=True, kw_only=True)
class VTraceBounds:
    """Upper bounds of the importance ratios of V-trace."""

    rho: float
    c: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    """Everything from which an algorithm may estimate advantages, for all responses of a step."""

    token_rewards: Tensor
    "[B, T] outcome reward on the last token, minus the KL penalty if any"
    rewards: Tensor
    "[B] outcome reward"
    response_mask: Tensor
    "[B, T] bool"
    groups: Tensor
    "[B] int64"
    values: Tensor | None = None
    "[B, T], if the algorithm has a critic"
    scored: Tensor | None = None
    "[B] bool: False for rows without a reward; None if all rows have one"
    baselines: Tensor | None = None
    "[B] outcome reward of the greedy response to the same prompt"
    logprobs: Tensor | None = None
    "[B, T] of the sampled tokens under the current policy"
    rollout_logprobs: Tensor | None = None
    "[B, T] under the policy that sampled them"
    sum_pi_squared: Tensor | None = None
    "[B, T]"
    importance: Tensor | None = None
    "[B, T] importance weights of the tokens; 1 if None"
    reward_parts: Mapping[str, Tensor] = field(default_factory=dict)
    "[B] by name"
    part_weights: Mapping[str, float] = field(default_factory=dict)
    cost_advantages: Tensor | None = None
    "[B, T] not whitened"
    multiplier: float = 0.0
    "Lagrange multiplier of the cost constraint"
    gamma: float
    gae_lambda: float
    whiten: bool
    normalize_by_std: bool
    vtrace: VTraceBounds | None = None
    "with a critic: V-trace instead of GAE"


def ppo_advantages(inputs: AdvantageInputs) -> AdvantageEstimate:
    """GAE or V-trace, whitened over the step if `whiten`. Rows without a reward get advantage and return 0."""
    assert inputs.values is not None
    mask = kept(inputs)
    estimate = with_critic(inputs, token_rewards=inputs.token_rewards, values=inputs.values)
    return estimate._replace(advantages=whiten(estimate.advantages, mask=mask)) if inputs.whiten else estimate


def lagrangian_advantages(inputs: AdvantageInputs) -> AdvantageEstimate:
    """(A_reward - multiplier A_cost) / (1 + multiplier), whitened over the step if `whiten`.

    Returns are those of the reward.
    """
    assert inputs.values is not None
    assert inputs.cost_advantages is not None
    reward = with_critic(inputs, token_rewards=inputs.token_rewards, values=inputs.values)
    both = constrained_advantages(reward.advantages, inputs.cost_advantages, multiplier=inputs.multiplier)
    return AdvantageEstimate(whiten(both, mask=kept(inputs)) if inputs.whiten else both, reward.returns)


def with_critic(inputs: AdvantageInputs, *, token_rewards: Tensor, values: Tensor) -> AdvantageEstimate:
    """GAE or V-trace over the scored rows, not whitened."""
    mask = kept(inputs)
    if inputs.vtrace is None:
        return gae(
            token_rewards=token_rewards,
            values=values,
            response_mask=mask,
            gamma=inputs.gamma,
            gae_lambda=inputs.gae_lambda,
        )
    assert inputs.logprobs is not None
    assert inputs.rollout_logprobs is not None
    return vtrace(
        token_rewards=token_rewards,
        values=values,
        old_logprobs=inputs.logprobs,
        rollout_logprobs=inputs.rollout_logprobs,
        response_mask=mask,
        gamma=inputs.gamma,
        gae_lambda=inputs.gae_lambda,
        max_rho=inputs.vtrace.rho,
        max_c=inputs.vtrace.c,
    )


def kept(inputs: AdvantageInputs) -> Tensor:
    """[B, T] bool: the tokens of scored rows."""
    return inputs.response_mask if inputs.scored is None else inputs.response_mask & inputs.scored[:, None]


def grpo_advantages(inputs: AdvantageInputs) -> AdvantageEstimate:
    """GRPO on `response_rewards`."""
    return grpo(
        rewards=response_rewards(inputs),
        groups=inputs.groups,
        response_mask=inputs.response_mask,
        normalize_by_std=inputs.normalize_by_std,
        scored=inputs.scored,
    )


def passk_advantages(inputs: AdvantageInputs) -> AdvantageEstimate:
    """GRPO for pass@k on `response_rewards`."""
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


def remax_advantages(inputs: AdvantageInputs) -> AdvantageEstimate:
    assert inputs.baselines is not None
    return remax(
        token_rewards=inputs.token_rewards,
        baselines=inputs.baselines,
        response_mask=inputs.response_mask,
        scored=inputs.scored,
    )


def gdpo_advantages(inputs: AdvantageInputs) -> AdvantageEstimate:
    return gdpo(
        reward_parts=inputs.reward_parts,
        weights=inputs.part_weights,
        groups=inputs.groups,
        response_mask=inputs.response_mask,
        scored=inputs.scored,
    )


def response_rewards(inputs: AdvantageInputs) -> Tensor:
    """The sum of the token rewards of each response, including the KL penalty, [B].

    For a response without tokens it is the outcome reward.
    """
    summed = masked_sum(inputs.token_rewards, mask=inputs.response_mask, dim=1)
    return torch.where(inputs.response_mask.any(1), summed, inputs.rewards)


Estimator = Callable[[AdvantageInputs], AdvantageEstimate]


def _by_token_baseline(estimate: Callable[..., AdvantageEstimate]) -> Estimator:
    def advantages(inputs: AdvantageInputs) -> AdvantageEstimate:
        assert inputs.logprobs is not None
        assert inputs.sum_pi_squared is not None
        return estimate(
            token_rewards=inputs.token_rewards,
            logprobs=inputs.logprobs,
            sum_pi_squared=inputs.sum_pi_squared,
            groups=inputs.groups,
            response_mask=inputs.response_mask,
            importance=inputs.importance,
            scored=inputs.scored,
        )

    return advantages


def _compared(estimate: Callable[..., AdvantageEstimate]) -> Estimator:
    """An estimator that needs only `response_rewards` and groups."""

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
    "ppo_lagrangian": lagrangian_advantages,
    "grpo": grpo_advantages,
    "dr_grpo": grpo_advantages,
    "dapo": grpo_advantages,
    "rloo": _compared(rloo),
    "reinforce_plus_plus": reinforce_plus_plus_advantages,
    "reinforce_plus_plus_baseline": _compared(reinforce_plus_plus_baseline),
    "opo": _compared(opo),
    "grpo_passk": passk_advantages,
    "gpg": _compared(gpg),
    "gdpo": gdpo_advantages,
    "remax": remax_advantages,
    "optimal_token_baseline": _by_token_baseline(optimal_token_baseline),
    "tir_optimal_token_baseline": _by_token_baseline(tir_optimal_token_baseline),
}
"by `algorithm.name`"
