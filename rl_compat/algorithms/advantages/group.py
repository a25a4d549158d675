"""Group-based advantages: one number per response, the same on all of its tokens, or a baseline for each token.

Rewards are [B], groups [B] int64, response_mask [B, T] bool and scored [B] bool. Rows where scored is False get 0 and
are excluded from all statistics. Returns of estimators with one number per response are equal to the advantages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rl_compat.algorithms.advantages.gae import AdvantageEstimate, discounted_returns
from rl_compat.algorithms.masking import at_least_float32, whiten

GROUP_EPSILON = 1e-6


def grpo(
    *, rewards: Tensor, groups: Tensor, response_mask: Tensor, normalize_by_std: bool, scored: Tensor | None = None
) -> AdvantageEstimate:
    """A = (r - mean) / (std + 1e-6) with the sample standard deviation (Shao et al. 2024, "DeepSeekMath"), [B, T].

    Without normalize_by_std it is A = r - mean (Liu et al. 2025, "Dr. GRPO"). Groups with equal rewards get exactly 0,
    and so does a row whose siblings are all unscored. In a group of one row, A is the reward.
    """
    exact, group, scored = _compared(rewards, groups, scored)
    rows = exact - _kept_alone(group)
    if normalize_by_std:
        rows = rows / (group.of_rows(group.stds) + GROUP_EPSILON)
    return _on_tokens(rows, rewards, scored, response_mask)


def rloo(*, rewards: Tensor, groups: Tensor, response_mask: Tensor, scored: Tensor | None = None) -> AdvantageEstimate:
    """A = r minus the mean reward of the other responses, n / (n - 1) (r - mean) (Ahmadian et al. 2024), [B, T].

    In a group of one row, A is the reward, as in verl's `rloo` (verl's `rloo_vectorized` gives 0).
    """
    exact, group, scored = _compared(rewards, groups, scored)
    count = group.of_rows(group.num_scored)
    rows = torch.where(count > 1, count / (count - 1).clamp(min=1), 1.0) * (exact - _kept_alone(group))
    return _on_tokens(rows, rewards, scored, response_mask)


def opo(*, rewards: Tensor, groups: Tensor, response_mask: Tensor, scored: Tensor | None = None) -> AdvantageEstimate:
    """A = r - sum(length r) / sum(length) over the group (Hao et al. 2025, "OPO"), [B, T].

    Lengths are numbers of tokens in the mask. In a group of one row, A is the reward.
    """
    exact, group, scored = _compared(rewards, groups, scored)
    lengths = response_mask.sum(1).double().masked_fill(~scored, 0)
    baseline = group_sums(lengths * exact, groups=groups) / group_sums(lengths, groups=groups).clamp(min=1)
    baseline = torch.where(group.of_rows(group.equal), group.of_rows(group.means), baseline)
    rows = exact - baseline.masked_fill(group.of_rows(group.num_rows) == 1, 0)
    return _on_tokens(rows, rewards, scored, response_mask)


def gpg(*, rewards: Tensor, groups: Tensor, response_mask: Tensor, scored: Tensor | None = None) -> AdvantageEstimate:
    """A = alpha (r - mean) with alpha = rows / rows with a nonzero reward (Chu et al. 2025, "GPG"), [B, T].

    Only scored rows are counted. In a group of one row, A is alpha times the reward.
    """
    exact, group, scored = _compared(rewards, groups, scored)
    alpha = scored.sum() / ((exact != 0) & scored).sum().clamp(min=1)
    return _on_tokens(alpha * (exact - _kept_alone(group)), rewards, scored, response_mask)


def grpo_passk(
    *, rewards: Tensor, groups: Tensor, response_mask: Tensor, normalize_by_std: bool, scored: Tensor | None = None
) -> AdvantageEstimate:
    """A = (best - second best) / (std + 1e-6) for the best response of a group, else 0 (Tang et al. 2025), [B, T].

    Without normalize_by_std it is best - second best ("Optimizing Language Models for Inference Time Objectives using
    Reinforcement Learning"). A tie for the best gives 0, and so does a group with fewer than two scored rows, which
    verl rejects.
    """
    exact, group, scored = _compared(rewards, groups, scored)
    rows = torch.zeros_like(exact)
    for position in range(len(group.means)):
        members = ((group.row_group == position) & scored).nonzero().flatten()
        if len(members) > 1:
            best, second = exact[members].topk(2).values
            rows[members[exact[members].argmax()]] = best - second
    if normalize_by_std:
        rows = rows / (group.of_rows(group.stds) + GROUP_EPSILON)
    return _on_tokens(rows, rewards, scored, response_mask)


def gdpo(
    *,
    reward_parts: Mapping[str, Tensor],
    weights: Mapping[str, float],
    groups: Tensor,
    response_mask: Tensor,
    scored: Tensor | None = None,
) -> AdvantageEstimate:
    """The weighted sum of the GRPO advantages of each reward [B], whitened over the batch's response tokens, [B, T].

    Normalizing each reward by itself keeps its weight independent of its spread (Liu et al. 2026, "GDPO").
    """
    total = torch.zeros(response_mask.shape, dtype=torch.float64, device=response_mask.device)
    for name, rewards in reward_parts.items():
        part = grpo(
            rewards=rewards.double(), groups=groups, response_mask=response_mask, normalize_by_std=True, scored=scored
        )
        total = total + weights[name] * part.advantages
    kept = response_mask if scored is None else response_mask & scored[:, None]
    return _as_estimate(whiten(total, mask=kept).to(_result_dtype(*reward_parts.values())))


def reinforce_plus_plus_baseline(
    *, rewards: Tensor, groups: Tensor, response_mask: Tensor, scored: Tensor | None = None
) -> AdvantageEstimate:
    """A = r - mean of the group, whitened over the batch's response tokens (Hu et al. 2025, "REINFORCE++"), [B, T].

    In a group of one row, A is the reward before whitening.
    """
    exact, group, scored = _compared(rewards, groups, scored)
    spread = (exact - _kept_alone(group))[:, None].expand(response_mask.shape)
    return _as_estimate(whiten(spread, mask=response_mask & scored[:, None]).to(_result_dtype(rewards)))


def _compared(rewards: Tensor, groups: Tensor, scored: Tensor | None) -> tuple[Tensor, GroupStatistics, Tensor]:
    scored = torch.ones_like(groups, dtype=torch.bool) if scored is None else scored
    exact = rewards.double().masked_fill(~scored, 0)
    return exact, group_statistics(exact, groups=groups, scored=scored), scored


def _kept_alone(group: GroupStatistics) -> Tensor:
    """The mean of each row's group, 0 for a group of one row, [B]."""
    return group.of_rows(group.means.masked_fill(group.num_rows == 1, 0))


def _on_tokens(rows: Tensor, rewards: Tensor, scored: Tensor, response_mask: Tensor) -> AdvantageEstimate:
    rows = rows.masked_fill(~scored, 0).to(_result_dtype(rewards))
    return _as_estimate(rows[:, None].expand(response_mask.shape).masked_fill(~response_mask, 0))


def _as_estimate(advantages: Tensor) -> AdvantageEstimate:
    return AdvantageEstimate(advantages, advantages)


def _result_dtype(*rewards: Tensor) -> torch.dtype:
    return at_least_float32(rewards[0]).dtype


class GroupStatistics(NamedTuple):
    """Statistics of G groups over their scored rows. The mean of equal rewards is exactly that reward."""

    row_group: Tensor
    "[B] index of each row's group in the other fields, which are [G]"
    num_rows: Tensor
    num_scored: Tensor
    means: Tensor
    stds: Tensor
    "sample standard deviation; 1 for fewer than two scored rows"
    equal: Tensor
    "bool: all scored rewards are equal"

    def of_rows(self, statistic: Tensor) -> Tensor:
        """A statistic [G] gathered per row, [B]."""
        return statistic[self.row_group]


def group_statistics(rewards: Tensor, *, groups: Tensor, scored: Tensor) -> GroupStatistics:
    """Statistics of the rewards [B] in their groups [B] int64, without the rows where scored [B] is False."""
    ids, row_group = groups.unique(return_inverse=True)
    zeros, seen = rewards.new_zeros(len(ids)), row_group[scored]
    values, ones = rewards[scored], torch.ones_like(rewards)
    num_rows, num_scored = zeros.index_add(0, row_group, ones), zeros.index_add(0, seen, ones[scored])
    lowest = zeros.scatter_reduce(0, seen, values, "amin", include_self=False)
    highest = zeros.scatter_reduce(0, seen, values, "amax", include_self=False)
    equal = lowest == highest
    # rounding: the mean of equal values can differ from them in the last digit
    means = torch.where(equal, lowest, zeros.index_add(0, seen, values) / num_scored.clamp(min=1))
    squares = zeros.index_add(0, seen, (values - means[seen]).square())
    stds = torch.where(num_scored > 1, (squares / (num_scored - 1).clamp(min=1)).sqrt(), 1.0)
    return GroupStatistics(row_group, num_rows, num_scored, means, stds, equal)


def group_sums(values: Tensor, *, groups: Tensor) -> Tensor:
    """Sum of the values [B, ...] over the rows of each row's group [B] int64, [B, ...]."""
    ids, row_group = groups.unique(return_inverse=True)
    sums = values.new_zeros(len(ids), *values.shape[1:]).index_add(0, row_group, values)
    return sums[row_group]


def zero_spread_fraction(*, rewards: Tensor, groups: Tensor, scored: Tensor | None = None) -> float:
    """Fraction of the groups with several scored rewards in which all rewards are equal, so that advantages are 0."""
    scored = torch.ones_like(groups, dtype=torch.bool) if scored is None else scored
    group = group_statistics(rewards.double().masked_fill(~scored, 0), groups=groups, scored=scored)
    comparable = group.num_scored > 1
    return int((group.equal & comparable).sum()) / max(1, int(comparable.sum()))


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
