"""From rewards to advantages: token rewards, generalized advantage estimation, and rewards compared within a group."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl_compat.algorithms.masking import length_mask
from rl_compat.algorithms.precision import at_least_float32

GROUP_EPSILON = 1e-6


class AdvantageEstimate(NamedTuple):
    """Advantages and returns, both [B, T] and 0 outside the mask."""

    advantages: Tensor
    returns: Tensor


def outcome_token_rewards(*, rewards: Tensor, response_lengths: Tensor, response_mask: Tensor) -> Tensor:
    """Rewards [B] put on the last token of each response, [B, T].

    The last token is the last one within the length [B] and the mask [B, T]; a response without any gets no reward.
    """
    real = response_mask & length_mask(response_lengths, response_mask.shape[1])
    is_last = real & (real.flip(1).cumsum(1).flip(1) == 1)
    return at_least_float32(rewards)[:, None].expand(real.shape).masked_fill(~is_last, 0)


def add_kl_penalty(token_rewards: Tensor, kl: Tensor, *, coef: float, mask: Tensor) -> Tensor:
    """token_rewards [B, T] minus coef times kl [B, T] on the tokens of the mask [B, T]."""
    return at_least_float32(token_rewards) - coef * at_least_float32(kl).masked_fill(~mask, 0)


def gae(
    *, token_rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float, gae_lambda: float
) -> AdvantageEstimate:
    """Generalized advantage estimation over token_rewards, values and response_mask [B, T] (Schulman et al. 2016).

    delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lambda A_{t+1}, where t + 1 is the next token of the
    mask: tokens outside it hand value and advantage on as they came. Advantages are not whitened; returns are A + V.
    """
    token_rewards, values = at_least_float32(token_rewards), at_least_float32(values)
    next_value = next_advantage = torch.zeros_like(values[:, 0])
    reversed_advantages = []
    for t in reversed(range(values.shape[1])):
        delta = token_rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * gae_lambda * next_advantage
        next_value = torch.where(response_mask[:, t], values[:, t], next_value)
        next_advantage = torch.where(response_mask[:, t], advantage, next_advantage)
        reversed_advantages.append(next_advantage)
    advantages = torch.stack(reversed_advantages[::-1], dim=1)
    outside = ~response_mask
    return AdvantageEstimate(advantages.masked_fill(outside, 0), (advantages + values).masked_fill(outside, 0))


def grpo(
    *,
    rewards: Tensor,
    groups: Tensor,
    response_mask: Tensor,
    normalize_by_std: bool,
    scored: Tensor | None = None,
) -> AdvantageEstimate:
    """Rewards [B] compared within their groups [B] int64, on every token of response_mask [B, T] (Shao et al. 2024).

    A = (r - mean) / (std + 1e-6) with the sample standard deviation, or r - mean alone (Liu et al. 2025, "Dr. GRPO").
    Rows where scored [B] is False count nowhere and get 0, as do groups whose rewards are all equal and a row whose
    siblings are all unscored. A group of one row has mean 0 and deviation 1, so it keeps its reward. Returns are the
    advantages.
    """
    scored = torch.ones_like(groups, dtype=torch.bool) if scored is None else scored
    exact = rewards.double().masked_fill(~scored, 0)
    group = _group_statistics(exact, groups=groups, scored=scored)
    row_advantages = exact - group.means[group.row_group]
    if normalize_by_std:
        row_advantages = row_advantages / (group.stds[group.row_group] + GROUP_EPSILON)
    row_advantages = row_advantages.masked_fill(~scored, 0).to(at_least_float32(rewards).dtype)
    advantages = row_advantages[:, None].expand(response_mask.shape).masked_fill(~response_mask, 0)
    return AdvantageEstimate(advantages, advantages)


def zero_spread_fraction(*, rewards: Tensor, groups: Tensor, scored: Tensor | None = None) -> float:
    """Share of the groups [B] with several scored rewards [B] in which these are all equal and so teach nothing."""
    scored = torch.ones_like(groups, dtype=torch.bool) if scored is None else scored
    group = _group_statistics(rewards.double().masked_fill(~scored, 0), groups=groups, scored=scored)
    comparable = group.num_scored > 1
    return int((group.equal & comparable).sum()) / max(1, int(comparable.sum()))


class _GroupStatistics(NamedTuple):
    row_group: Tensor
    "[B] position of each row's group in the other fields, which are [G]"
    num_scored: Tensor
    means: Tensor
    stds: Tensor
    equal: Tensor


def _group_statistics(rewards: Tensor, *, groups: Tensor, scored: Tensor) -> _GroupStatistics:
    ids, row_group = groups.unique(return_inverse=True)
    zeros, seen = rewards.new_zeros(len(ids)), row_group[scored]
    values, ones = rewards[scored], torch.ones_like(rewards)
    num_rows, num_scored = zeros.index_add(0, row_group, ones), zeros.index_add(0, seen, ones[scored])
    lowest = zeros.scatter_reduce(0, seen, values, "amin", include_self=False)
    highest = zeros.scatter_reduce(0, seen, values, "amax", include_self=False)
    equal = lowest == highest
    # the mean of equal values can differ from them in the last digit
    means = torch.where(equal, lowest, zeros.index_add(0, seen, values) / num_scored.clamp(min=1))
    squares = zeros.index_add(0, seen, (values - means[seen]).square())
    stds = torch.where(num_scored > 1, (squares / (num_scored - 1).clamp(min=1)).sqrt(), 1.0)
    return _GroupStatistics(row_group, num_scored, means.masked_fill(num_rows == 1, 0), stds, equal)
