"""Statistics of rewards within groups. A group is all responses of one prompt."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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
