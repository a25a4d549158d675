"""Minimum-variance baselines per token, computed over the responses of a group."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_compat.algorithms.advantages.gae import AdvantageEstimate, discounted_returns
from rl_compat.algorithms.advantages.group import group_sums
from rl_compat.algorithms.masking import at_least_float32

EPSILON = 1e-8


def optimal_token_baseline(
    *,
    token_rewards: Tensor,
    logprobs: Tensor,
    sum_pi_squared: Tensor,
    groups: Tensor,
    response_mask: Tensor,
    importance: Tensor | None = None,
) -> AdvantageEstimate:
    """A_t = G_t - B_t over responses [B, T], with B_t = sum(G_t W_t) / sum(W_t) over the group's rows at column t.

    G is the reward-to-go and W_t = sum over the tokens up to t of 1 - 2 pi + sum_v pi_v^2, the squared norm of the
    score function in the logits: pi [B, T] is the probability of the sampled token and sum_pi_squared [B, T] that sum
    over the vocabulary. If off-policy weights importance [B, T] are given, each term is multiplied by their square. B
    is 0 in a group of one, and in the single longest response of a group beyond the length of the second longest.
    Returns are G. Source: the estimator of the same name in verl, after the minimum-variance baseline for policy
    gradients (Greensmith et al. 2004).
    """
    returns = discounted_returns(token_rewards=token_rewards, response_mask=response_mask, gamma=1.0)
    energy = 1 - 2 * at_least_float32(logprobs).exp() + at_least_float32(sum_pi_squared)
    if importance is not None:
        energy = energy * at_least_float32(importance).square()
    weights = energy.masked_fill(~response_mask, 0).cumsum(1).masked_fill(~response_mask, 0)
    baseline = group_sums(returns * weights, groups=groups) / (group_sums(weights, groups=groups) + EPSILON)
    baseline = baseline.masked_fill(_lonely_tail(response_mask, groups), 0)
    return AdvantageEstimate((returns - baseline).masked_fill(~response_mask, 0), returns)


def tir_optimal_token_baseline(
    *,
    token_rewards: Tensor,
    logprobs: Tensor,
    sum_pi_squared: Tensor,
    groups: Tensor,
    response_mask: Tensor,
    importance: Tensor | None = None,
) -> AdvantageEstimate:
    """Like `optimal_token_baseline`, with tokens aligned by their position within the mask instead of their column.

    The two differ if the mask has gaps, as in tool-integrated reasoning. Source: the estimator of the same name in
    verl.
    """
    order = (~response_mask).to(torch.int8).argsort(dim=1, stable=True)
    estimate = optimal_token_baseline(
        token_rewards=token_rewards.gather(1, order),
        logprobs=logprobs.gather(1, order),
        sum_pi_squared=sum_pi_squared.gather(1, order),
        groups=groups,
        response_mask=response_mask.gather(1, order),
        importance=None if importance is None else importance.gather(1, order),
    )
    return AdvantageEstimate(*(torch.zeros_like(part).scatter(1, order, part) for part in estimate))


def _lonely_tail(mask: Tensor, groups: Tensor) -> Tensor:
    """Columns of the single longest row of each group beyond the length of the second longest, [B, T] bool."""
    lengths = mask.sum(1)
    tail = torch.zeros_like(mask)
    for group in groups.unique().tolist():
        rows = (groups == group).nonzero().flatten()
        ordered = lengths[rows].sort(descending=True).values
        second = ordered[1] if len(rows) > 1 else torch.zeros_like(ordered[0])
        if ordered[0] > second:
            tail[rows[lengths[rows].argmax()], int(second) :] = True
    return tail
