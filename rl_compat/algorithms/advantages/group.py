"""Advantages from comparing the responses of one prompt: one number for each response, on all of its tokens.

Everywhere rewards are [B], groups [B] int64, response_mask [B, T] bool and scored [B] bool. Rows where scored is False
count in no statistic and get 0. Returns are the advantages.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_compat.algorithms.advantages.gae import AdvantageEstimate
from rl_compat.algorithms.advantages.group_statistics import GroupStatistics, group_statistics, group_sums
from rl_compat.algorithms.masking import whiten
from rl_compat.algorithms.precision import at_least_float32

GROUP_EPSILON = 1e-6


def grpo(
    *, rewards: Tensor, groups: Tensor, response_mask: Tensor, normalize_by_std: bool, scored: Tensor | None = None
) -> AdvantageEstimate:
    """A = (r - mean) / (std + 1e-6) with the sample standard deviation (Shao et al. 2024, "DeepSeekMath"), [B, T].

    Without the division it is A = r - mean (Liu et al. 2025, "Dr. GRPO"). Groups whose rewards are all equal get
    exactly 0, and so does a row whose siblings are all unscored. A group of one row keeps its reward.
    """
    exact, group, scored = _compared(rewards, groups, scored)
    rows = exact - _kept_alone(group)
    if normalize_by_std:
        rows = rows / (group.of_rows(group.stds) + GROUP_EPSILON)
    return _on_tokens(rows, rewards, scored, response_mask)


def rloo(*, rewards: Tensor, groups: Tensor, response_mask: Tensor, scored: Tensor | None = None) -> AdvantageEstimate:
    """A = r minus the mean reward of the other responses, n / (n - 1) (r - mean) (Ahmadian et al. 2024), [B, T].

    A group of one row keeps its reward, as in verl's `rloo`; its `rloo_vectorized` gives 0 there.
    """
    exact, group, scored = _compared(rewards, groups, scored)
    count = group.of_rows(group.num_scored)
    rows = torch.where(count > 1, count / (count - 1).clamp(min=1), 1.0) * (exact - _kept_alone(group))
    return _on_tokens(rows, rewards, scored, response_mask)


def opo(*, rewards: Tensor, groups: Tensor, response_mask: Tensor, scored: Tensor | None = None) -> AdvantageEstimate:
    """A = r - sum(length r) / sum(length) over the group (Hao et al. 2025, "OPO"), [B, T].

    Lengths count the tokens of the mask. A group of one row keeps its reward.
    """
    exact, group, scored = _compared(rewards, groups, scored)
    lengths = response_mask.sum(1).double().masked_fill(~scored, 0)
    baseline = group_sums(lengths * exact, groups=groups) / group_sums(lengths, groups=groups).clamp(min=1)
    baseline = torch.where(group.of_rows(group.equal), group.of_rows(group.means), baseline)
    rows = exact - baseline.masked_fill(group.of_rows(group.num_rows) == 1, 0)
    return _on_tokens(rows, rewards, scored, response_mask)


def gpg(*, rewards: Tensor, groups: Tensor, response_mask: Tensor, scored: Tensor | None = None) -> AdvantageEstimate:
    """A = alpha (r - mean) with alpha = rows / rows of a nonzero reward (Chu et al. 2025, "GPG"), [B, T].

    Rows without a score count in neither number. A group of one row keeps its reward.
    """
    exact, group, scored = _compared(rewards, groups, scored)
    alpha = scored.sum() / ((exact != 0) & scored).sum().clamp(min=1)
    return _on_tokens(alpha * (exact - _kept_alone(group)), rewards, scored, response_mask)


def grpo_passk(
    *, rewards: Tensor, groups: Tensor, response_mask: Tensor, normalize_by_std: bool, scored: Tensor | None = None
) -> AdvantageEstimate:
    """Only the best response of a group learns, by its lead over the second best (Tang et al. 2025), [B, T].

    A = (best - second) / (std + 1e-6), or best - second alone ("Optimizing Language Models for Inference Time
    Objectives using Reinforcement Learning"). Equal bests have no lead and get 0, and so does a group with fewer than
    two scored rows, which verl refuses.
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
    """Every reward [B] is compared by itself as in GRPO, then summed with its weight and whitened, [B, T].

    Rewards of different spread so keep the share that their weights say (Liu et al. 2026, "GDPO"). Whitening is over
    the batch's response tokens.
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

    A group of one row keeps its reward before the whitening.
    """
    exact, group, scored = _compared(rewards, groups, scored)
    spread = (exact - _kept_alone(group)).masked_fill(~scored, 0)[:, None].expand(response_mask.shape)
    return _as_estimate(whiten(spread, mask=response_mask & scored[:, None]).to(_result_dtype(rewards)))


def _compared(rewards: Tensor, groups: Tensor, scored: Tensor | None) -> tuple[Tensor, GroupStatistics, Tensor]:
    scored = torch.ones_like(groups, dtype=torch.bool) if scored is None else scored
    exact = rewards.double().masked_fill(~scored, 0)
    return exact, group_statistics(exact, groups=groups, scored=scored), scored


def _kept_alone(group: GroupStatistics) -> Tensor:
    """The group's mean for each row, 0 for a group of one row."""
    return group.of_rows(group.means.masked_fill(group.num_rows == 1, 0))


def _on_tokens(rows: Tensor, rewards: Tensor, scored: Tensor, response_mask: Tensor) -> AdvantageEstimate:
    rows = rows.masked_fill(~scored, 0).to(_result_dtype(rewards))
    return _as_estimate(rows[:, None].expand(response_mask.shape).masked_fill(~response_mask, 0))


def _as_estimate(advantages: Tensor) -> AdvantageEstimate:
    return AdvantageEstimate(advantages, advantages)


def _result_dtype(*rewards: Tensor) -> torch.dtype:
    return at_least_float32(rewards[0]).dtype
