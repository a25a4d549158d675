"""From scored responses to what the updates learn from: token rewards, advantages and returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rl_compat.algorithms.advantages import add_kl_penalty, outcome_token_rewards
from rl_compat.algorithms.estimators import ESTIMATORS, AdvantageInputs
from rl_compat.algorithms.kl import kl_estimate
from rl_compat.algorithms.masking import masked_mean
from rl_compat.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperienceSettings:
    """Which estimator turns rewards into advantages, and the KL penalty inside the reward."""

    algorithm: str = "ppo"
    gamma: float = 1.0
    gae_lambda: float = 1.0
    whiten: bool = True
    normalize_by_std: bool = True
    kl_in_reward: Literal["none", "k1", "abs", "k2", "k3"] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    batch: Batch
    scored: Tensor
    "[B] bool: False on responses that had no reward"
    reward_kl: float
    "mean KL per token between the policy and the reference, 0 without one in the reward"


def make_experience(
    batch: Batch, *, rewards: Sequence[float | None], settings: ExperienceSettings, kl_coef: float
) -> Experience:
    """The batch with rewards, token rewards, advantages and returns.

    `rewards` holds one outcome per response. A response without one (None) is left out: its mask is cleared, and no
    group statistic counts it. A KL in the reward needs `old_logprobs` and `ref_logprobs`, PPO needs `values`.
    """
    scored = torch.tensor([reward is not None for reward in rewards])
    outcome = torch.tensor([0.0 if reward is None else float(reward) for reward in rewards])
    mask = batch.response_mask & scored[:, None]
    token_rewards = outcome_token_rewards(rewards=outcome, response_lengths=batch.response_lengths, response_mask=mask)
    reward_kl = 0.0
    if settings.kl_in_reward != "none":
        kl = _reward_kl(batch, settings.kl_in_reward)
        reward_kl = float(masked_mean(kl, mask=mask))
        token_rewards = add_kl_penalty(token_rewards, kl=kl, coef=kl_coef, mask=mask)
    estimate = ESTIMATORS[settings.algorithm](
        AdvantageInputs(
            token_rewards=token_rewards,
            rewards=outcome,
            values=batch.values,
            response_mask=mask,
            groups=batch.groups,
            scored=scored,
            gamma=settings.gamma,
            gae_lambda=settings.gae_lambda,
            whiten=settings.whiten,
            normalize_by_std=settings.normalize_by_std,
        )
    )
    return Experience(
        batch=batch.with_(
            response_mask=mask,
            rewards=outcome,
            token_rewards=token_rewards,
            advantages=estimate.advantages,
            returns=estimate.returns,
        ),
        scored=scored,
        reward_kl=reward_kl,
    )


def _reward_kl(batch: Batch, kind: Literal["k1", "abs", "k2", "k3"]) -> Tensor:
    assert batch.old_logprobs is not None, "the KL in the reward needs the policy's log-probabilities"
    assert batch.ref_logprobs is not None, "the KL in the reward needs the reference's log-probabilities"
    return kl_estimate(kind, logprobs=batch.old_logprobs, ref_logprobs=batch.ref_logprobs)
