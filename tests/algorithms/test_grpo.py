from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rl_compat.algorithms.advantages.group import grpo
from rl_compat.algorithms.masking import length_mask

NAN = float("nan")


def every_token(num_rows: int, num_tokens: int = 2) -> Tensor:
    return torch.ones(num_rows, num_tokens, dtype=torch.bool)


def row_advantages(
    rewards: list[float], groups: list[int], *, normalize_by_std: bool = True, scored=None
) -> list[float]:
    estimate = grpo(
        rewards=torch.tensor(rewards),
        groups=torch.tensor(groups),
        response_mask=every_token(len(rewards)),
        normalize_by_std=normalize_by_std,
        scored=None if scored is None else torch.tensor(scored),
    )
    assert torch.equal(estimate.advantages[:, 0], estimate.advantages[:, 1])
    assert torch.equal(estimate.returns, estimate.advantages)
    return estimate.advantages[:, 0].tolist()


def test_a_group_of_one_keeps_its_reward():
    """A-ALG-01: mean 0, deviation 1, as documented."""
    assert row_advantages([1.0], [0]) == pytest.approx([1.0], abs=2e-6)
    assert row_advantages([1.0], [0], normalize_by_std=False) == [1.0]


@pytest.mark.parametrize("reward", [1.0, 0.0, 0.1])
@pytest.mark.parametrize("size", [3, 4, 7])
@pytest.mark.parametrize("normalize_by_std", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero(reward, size, normalize_by_std, dtype):
    """A-ALG-02."""
    rewards, groups = torch.full((size,), reward, dtype=dtype), torch.zeros(size, dtype=torch.int64)

    estimate = grpo(rewards=rewards, groups=groups, response_mask=every_token(size), normalize_by_std=normalize_by_std)

    assert estimate.advantages.abs().max().item() == 0


def test_rewards_are_compared_within_their_group_in_any_order():
    """A-ALG-03: the sample deviation, so two rewards lie 0.7071 deviations from their mean, less the epsilon."""
    advantages = row_advantages([1.0, 5.0, 0.0, 3.0], [4, 9, 4, 9])

    half_root = math.sqrt(0.5)
    expected = [half_root, half_root, -half_root, -half_root]
    assert advantages == pytest.approx(expected, abs=2e-6)
    assert advantages[0] == pytest.approx(0.5 / (half_root + 1e-6), rel=1e-7)


def test_without_the_deviation_only_the_mean_is_taken_off():
    assert row_advantages([1.0, 5.0, 0.0, 3.0], [0, 1, 0, 1], normalize_by_std=False) == [0.5, 1.0, -0.5, -1.0]


def test_occurrences_of_the_same_prompt_are_groups_of_their_own():
    """A-ALG-11: group ids number the occurrences, so equal texts do not meet."""
    a_first, a_second, *others = row_advantages([1.0, 0.0, 1.0, 1.0, 0.0, 0.0], [0, 0, 1, 1, 2, 2])

    assert a_first > 0 > a_second
    assert others == [0, 0, 0, 0]


@pytest.mark.parametrize("filler", [0.0, NAN, 100.0])
def test_an_unscored_row_gets_nothing_and_moves_nobody(filler):
    """A-REW-07."""
    first, unscored, last = row_advantages([1.0, filler, 0.0], [0, 0, 0], scored=[True, False, True])

    assert [first, last] == row_advantages([1.0, 0.0], [0, 0])
    assert unscored == 0


def test_a_row_whose_siblings_are_all_unscored_has_nothing_to_be_compared_with():
    assert row_advantages([1.0, NAN, NAN], [0, 0, 0], scored=[True, False, False]) == [0, 0, 0]


def test_a_group_without_any_score_is_zero():
    assert row_advantages([NAN, NAN], [0, 0], scored=[False, False]) == [0, 0]


def test_advantages_stand_only_on_the_tokens_of_the_mask(responses):
    estimate = grpo(
        rewards=responses.rewards, groups=responses.groups, response_mask=responses.mask, normalize_by_std=True
    )

    assert estimate.advantages[~responses.mask].abs().max().item() == 0
    assert (estimate.advantages[responses.mask] != 0).all()


def test_the_order_of_rows_does_not_matter(responses):
    order = torch.tensor([4, 1, 5, 0, 3, 2])

    straight = grpo(
        rewards=responses.rewards, groups=responses.groups, response_mask=responses.mask, normalize_by_std=True
    )
    shuffled = grpo(
        rewards=responses.rewards[order],
        groups=responses.groups[order],
        response_mask=responses.mask[order],
        normalize_by_std=True,
    )

    assert_close(shuffled.advantages, straight.advantages[order])


@pytest.mark.parametrize(
    ("run", "by_std"), [("grpo", True), ("grpo_vectorized", True), ("grpo norm_adv_by_std_in_grpo=False", False)]
)
def test_matches_the_golden_advantages(golden, run, by_std):
    estimate = grpo(
        rewards=(golden.input("token_rewards") * golden.mask).sum(1),
        groups=golden.groups,
        response_mask=golden.mask,
        normalize_by_std=by_std,
    )

    assert_close(estimate.advantages, golden.output("advantages", run, "advantages"), atol=1e-6, rtol=0)
    assert_close(estimate.returns, golden.output("advantages", run, "returns"), atol=1e-6, rtol=0)


def test_an_empty_response_is_compared_by_its_score():
    """A-REW-11."""
    estimate = grpo(
        rewards=torch.tensor([10.0, 0.0]),
        groups=torch.tensor([0, 0]),
        response_mask=length_mask(torch.tensor([0, 2]), 3),
        normalize_by_std=True,
    )

    assert estimate.advantages[0].tolist() == [0, 0, 0]
    assert estimate.advantages[1].tolist() == pytest.approx([-math.sqrt(0.5), -math.sqrt(0.5), 0], abs=2e-6)
