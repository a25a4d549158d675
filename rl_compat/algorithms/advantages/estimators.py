"""The advantage estimator of each algorithm, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from rl_compat.algorithms.advantages.gae import AdvantageEstimate, gae, reinforce_plus_plus, remax, vtrace
from rl_compat.algorithms.advantages.group import (
    gdpo,
    gpg,
    grpo,
    grpo_passk,
    opo,
    optimal_token_baseline,
    reinforce_plus_plus_baseline,
    rloo,
    tir_optimal_token_baseline,
)
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
    "[B, T] bool: empty in rows without a reward"
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
    """GAE or V-trace, whitened over the step if `whiten`."""
    assert inputs.values is not None
    estimate = with_critic(inputs, token_rewards=inputs.token_rewards, values=inputs.values)
    return estimate._replace(advantages=_whitened(estimate.advantages, inputs))


def lagrangian_advantages(inputs: AdvantageInputs) -> AdvantageEstimate:
    """(A_reward - multiplier A_cost) / (1 + multiplier), whitened over the step if `whiten`.

    Returns are those of the reward.
    """
    assert inputs.values is not None
    assert inputs.cost_advantages is not None
    reward = with_critic(inputs, token_rewards=inputs.token_rewards, values=inputs.values)
    both = constrained_advantages(reward.advantages, inputs.cost_advantages, multiplier=inputs.multiplier)
    return AdvantageEstimate(_whitened(both, inputs), reward.returns)


def with_critic(inputs: AdvantageInputs, *, token_rewards: Tensor, values: Tensor) -> AdvantageEstimate:
    """GAE or V-trace, not whitened."""
    estimate: Callable[..., AdvantageEstimate] = gae
    if inputs.vtrace is not None:
        assert inputs.logprobs is not None
        assert inputs.rollout_logprobs is not None
        estimate = partial(
            vtrace,
            old_logprobs=inputs.logprobs,
            rollout_logprobs=inputs.rollout_logprobs,
            max_rho=inputs.vtrace.rho,
            max_c=inputs.vtrace.c,
        )
    return estimate(
        token_rewards=token_rewards,
        values=values,
        response_mask=inputs.response_mask,
        gamma=inputs.gamma,
        gae_lambda=inputs.gae_lambda,
    )


def _whitened(advantages: Tensor, inputs: AdvantageInputs) -> Tensor:
    return whiten(advantages, mask=inputs.response_mask) if inputs.whiten else advantages


def response_rewards(inputs: AdvantageInputs) -> Tensor:
    """The sum of the token rewards of each response, including the KL penalty, [B].

    For a response without tokens it is the outcome reward.
    """
    summed = masked_sum(inputs.token_rewards, mask=inputs.response_mask, dim=1)
    return torch.where(inputs.response_mask.any(1), summed, inputs.rewards)


Estimator = Callable[[AdvantageInputs], AdvantageEstimate]


def _by_keyword(estimate: Callable[..., AdvantageEstimate]) -> Estimator:
    """An estimator that is called with the inputs named like its parameters.

    `rewards` are the `response_rewards`, `weights` those of the parts.
    """
    names = tuple(inspect.signature(estimate).parameters)

    def advantages(inputs: AdvantageInputs) -> AdvantageEstimate:
        others: dict[str, Callable[[AdvantageInputs], Any]]
        others = {"rewards": response_rewards, "weights": attrgetter("part_weights")}
        return estimate(**{name: others.get(name, attrgetter(name))(inputs) for name in names})

    return advantages


ESTIMATORS: Mapping[str, Estimator] = {
    "ppo": ppo_advantages,
    "ppo_lagrangian": lagrangian_advantages,
    "grpo": _by_keyword(grpo),
    "dr_grpo": _by_keyword(grpo),
    "dapo": _by_keyword(grpo),
    "rloo": _by_keyword(rloo),
    "reinforce_plus_plus": _by_keyword(reinforce_plus_plus),
    "reinforce_plus_plus_baseline": _by_keyword(reinforce_plus_plus_baseline),
    "opo": _by_keyword(opo),
    "grpo_passk": _by_keyword(grpo_passk),
    "gpg": _by_keyword(gpg),
    "gdpo": _by_keyword(gdpo),
    "remax": _by_keyword(remax),
    "optimal_token_baseline": _by_keyword(optimal_token_baseline),
    "tir_optimal_token_baseline": _by_keyword(tir_optimal_token_baseline),
}
"by `algorithm.name`"
