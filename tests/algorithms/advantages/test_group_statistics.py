from __future__ import annotations

import pytest
import torch

from rl_compat.algorithms.advantages.group import group_statistics, group_sums, zero_spread_fraction

NAN = float("nan")


def test_statistics_count_the_scored_rows_of_each_group():
    group = group_statistics(
        torch.tensor([1.0, 5.0, 3.0, 9.0, 2.0], dtype=torch.float64),
        groups=torch.tensor([7, 4, 7, 7, 4]),
        scored=torch.tensor([True, True, True, False, False]),
    )

    assert group.num_rows.tolist() == [2, 3]
    assert group.num_scored.tolist() == [1, 2]
    assert group.of_rows(group.means).tolist() == [2, 5, 2, 2, 5]
    assert group.stds.tolist() == pytest.approx([1, 2**0.5])
    assert group.equal.tolist() == [True, False]


@pytest.mark.parametrize("size", [3, 7, 10])
def test_the_mean_of_equal_rewards_is_that_reward_to_the_last_digit(size):
    group = group_statistics(
        torch.full((size,), 0.1), groups=torch.zeros(size, dtype=torch.int64), scored=torch.ones(size).bool()
    )

    assert group.means.item() == torch.tensor(0.1).item()
    assert group.stds.item() == 0


def test_a_group_without_scores_has_defined_statistics():
    group = group_statistics(torch.zeros(2), groups=torch.tensor([0, 0]), scored=torch.zeros(2).bool())

    assert (group.means.item(), group.stds.item(), group.num_scored.item()) == (0, 1, 0)


def test_sums_run_over_the_rows_of_a_group():
    sums = group_sums(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), groups=torch.tensor([1, 0, 1]))

    assert sums.tolist() == [[6, 8], [3, 4], [6, 8]]


def test_zero_spread_counts_the_groups_that_could_have_differed():
    rewards, groups = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.5, 0.2, NAN]), torch.tensor([0, 0, 1, 1, 2, 3, 3])
    scored = torch.tensor([True] * 6 + [False])

    assert zero_spread_fraction(rewards=rewards, groups=groups, scored=scored) == 0.5
    assert zero_spread_fraction(rewards=torch.tensor([0.3]), groups=torch.tensor([0])) == 0.0
