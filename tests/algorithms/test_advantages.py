from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rl_compat.algorithms.advantages import (
    add_kl_penalty,
    gae,
    grpo,
    outcome_token_rewards,
    zero_spread_fraction,
)
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


class TestGAE:
    @pytest.mark.parametrize("filler", [99.0, -1e30, NAN, math.inf])
    @pytest.mark.parametrize(
        ("gae_lambda", "expected"), [(1.0, [0.5, 0.75, 0.5, 0.0]), (0.95, [0.43875, 0.725, 0.5, 0.0])]
    )
    def test_what_lies_behind_the_mask_does_not_flow_back(self, gae_lambda, expected, filler):
        """A-ALG-12."""
        estimate = gae(
            token_rewards=torch.tensor([[0.0, 0.0, 1.0, filler]]),
            values=torch.tensor([[0.5, 0.25, 0.5, filler]]),
            response_mask=torch.tensor([[True, True, True, False]]),
            gamma=1.0,
            gae_lambda=gae_lambda,
        )

        assert estimate.advantages[0].tolist() == pytest.approx(expected)
        assert estimate.returns[0].tolist() == pytest.approx(
            [a + v for a, v in zip(expected, [0.5, 0.25, 0.5, 0.0], strict=True)]
        )

    @pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 1.0), (0.99, 0.95), (0.9, 0.0)])
    def test_equals_the_sum_of_discounted_errors_over_the_tokens_of_the_mask(self, responses, gamma, gae_lambda):
        """The paper's equation 16, as a double loop over each row with the tokens outside the mask taken out."""
        expected = torch.zeros_like(responses.values)
        for row in range(6):
            columns = responses.mask[row].nonzero().flatten().tolist()
            rewards = [responses.token_rewards[row, c].item() for c in columns]
            values = [responses.values[row, c].item() for c in columns] + [0.0]
            errors = [r + gamma * values[i + 1] - values[i] for i, r in enumerate(rewards)]
            for i, column in enumerate(columns):
                expected[row, column] = sum((gamma * gae_lambda) ** k * e for k, e in enumerate(errors[i:]))

        estimate = gae(
            token_rewards=responses.token_rewards,
            values=responses.values,
            response_mask=responses.mask,
            gamma=gamma,
            gae_lambda=gae_lambda,
        )

        assert_close(estimate.advantages, expected)
        assert_close(estimate.returns, torch.where(responses.mask, expected + responses.values, 0.0))

    @pytest.mark.parametrize(
        ("run", "gamma", "gae_lambda"), [("gae gamma=1.0 lam=1.0", 1.0, 1.0), ("gae gamma=0.99 lam=0.95", 0.99, 0.95)]
    )
    def test_matches_the_golden_returns(self, golden, run, gamma, gae_lambda):
        """Outside the mask ours are 0 on purpose; the golden returns are the values there."""
        estimate = gae(
            token_rewards=golden.input("token_rewards"),
            values=golden.input("values"),
            response_mask=golden.mask,
            gamma=gamma,
            gae_lambda=gae_lambda,
        )

        expected = golden.output("advantages", run, "returns")
        assert_close(estimate.returns[golden.mask], expected[golden.mask], atol=1e-6, rtol=0)
        assert estimate.returns[~golden.mask].abs().max().item() == 0

    def test_more_masked_columns_change_nothing(self, responses):
        wider = torch.nn.functional.pad
        arguments = {"gamma": 0.9, "gae_lambda": 0.8}

        narrow = gae(
            token_rewards=responses.token_rewards, values=responses.values, response_mask=responses.mask, **arguments
        )
        wide = gae(
            token_rewards=wider(responses.token_rewards, (0, 3), value=7.0),
            values=wider(responses.values, (0, 3), value=NAN),
            response_mask=wider(responses.mask, (0, 3)),
            **arguments,
        )

        assert torch.equal(wide.advantages[:, :7], narrow.advantages)
        assert wide.advantages[:, 7:].abs().max().item() == 0

    def test_a_response_of_one_token_learns_reward_minus_value(self):
        estimate = gae(
            token_rewards=torch.tensor([[1.0]]),
            values=torch.tensor([[0.25]]),
            response_mask=every_token(1, 1),
            gamma=0.5,
            gae_lambda=0.5,
        )

        assert estimate.advantages.item() == 0.75
        assert estimate.returns.item() == 1.0


class TestGRPO:
    def test_a_group_of_one_keeps_its_reward(self):
        """A-ALG-01: mean 0, deviation 1, as documented."""
        assert row_advantages([1.0], [0]) == pytest.approx([1.0], abs=2e-6)
        assert row_advantages([1.0], [0], normalize_by_std=False) == [1.0]

    @pytest.mark.parametrize("reward", [1.0, 0.0, 0.1])
    @pytest.mark.parametrize("size", [3, 4, 7])
    @pytest.mark.parametrize("normalize_by_std", [True, False])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_equal_rewards_give_exactly_zero(self, reward, size, normalize_by_std, dtype):
        """A-ALG-02."""
        rewards, groups = torch.full((size,), reward, dtype=dtype), torch.zeros(size, dtype=torch.int64)

        estimate = grpo(
            rewards=rewards, groups=groups, response_mask=every_token(size), normalize_by_std=normalize_by_std
        )

        assert estimate.advantages.abs().max().item() == 0
        assert zero_spread_fraction(rewards=rewards, groups=groups) == 1.0

    def test_rewards_are_compared_within_their_group_in_any_order(self):
        """A-ALG-03: the sample deviation, so two rewards lie 0.7071 deviations from their mean, less the epsilon."""
        advantages = row_advantages([1.0, 5.0, 0.0, 3.0], [4, 9, 4, 9])

        half_root = math.sqrt(0.5)
        expected = [half_root, half_root, -half_root, -half_root]
        assert advantages == pytest.approx(expected, abs=2e-6)
        assert advantages[0] == pytest.approx(0.5 / (half_root + 1e-6), rel=1e-7)

    def test_without_the_deviation_only_the_mean_is_taken_off(self):
        assert row_advantages([1.0, 5.0, 0.0, 3.0], [0, 1, 0, 1], normalize_by_std=False) == [0.5, 1.0, -0.5, -1.0]

    def test_occurrences_of_the_same_prompt_are_groups_of_their_own(self):
        """A-ALG-11: group ids number the occurrences, so equal texts do not meet."""
        a_first, a_second, *others = row_advantages([1.0, 0.0, 1.0, 1.0, 0.0, 0.0], [0, 0, 1, 1, 2, 2])

        assert a_first > 0 > a_second
        assert others == [0, 0, 0, 0]

    @pytest.mark.parametrize("filler", [0.0, NAN, 100.0])
    def test_an_unscored_row_gets_nothing_and_moves_nobody(self, filler):
        """A-REW-07."""
        first, unscored, last = row_advantages([1.0, filler, 0.0], [0, 0, 0], scored=[True, False, True])

        assert [first, last] == row_advantages([1.0, 0.0], [0, 0])
        assert unscored == 0

    def test_a_row_whose_siblings_are_all_unscored_has_nothing_to_be_compared_with(self):
        assert row_advantages([1.0, NAN, NAN], [0, 0, 0], scored=[True, False, False]) == [0, 0, 0]

    def test_a_group_without_any_score_is_zero(self):
        assert row_advantages([NAN, NAN], [0, 0], scored=[False, False]) == [0, 0]

    def test_advantages_stand_only_on_the_tokens_of_the_mask(self, responses):
        estimate = grpo(
            rewards=responses.rewards, groups=responses.groups, response_mask=responses.mask, normalize_by_std=True
        )

        assert estimate.advantages[~responses.mask].abs().max().item() == 0
        assert (estimate.advantages[responses.mask] != 0).all()

    def test_the_order_of_rows_does_not_matter(self, responses):
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

    @pytest.mark.parametrize(("run", "by_std"), [("grpo", True), ("grpo norm_adv_by_std_in_grpo=False", False)])
    def test_matches_the_golden_advantages(self, golden, run, by_std):
        estimate = grpo(
            rewards=(golden.input("token_rewards") * golden.mask).sum(1),
            groups=golden.groups,
            response_mask=golden.mask,
            normalize_by_std=by_std,
        )

        assert_close(estimate.advantages, golden.output("advantages", run, "advantages"), atol=1e-6, rtol=0)
        assert_close(estimate.returns, golden.output("advantages", run, "returns"), atol=1e-6, rtol=0)

    def test_zero_spread_counts_the_groups_that_could_have_differed(self):
        rewards, groups = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.5, 0.2, NAN]), torch.tensor([0, 0, 1, 1, 2, 3, 3])
        scored = torch.tensor([True] * 6 + [False])

        assert zero_spread_fraction(rewards=rewards, groups=groups, scored=scored) == 0.5
        assert zero_spread_fraction(rewards=torch.tensor([0.3]), groups=torch.tensor([0])) == 0.0


class TestTokenRewards:
    def test_the_reward_stands_on_the_last_token(self):
        """A-ALG-08."""
        lengths = torch.tensor([2, 2, 1])

        token_rewards = outcome_token_rewards(
            rewards=torch.tensor([1.0, 2.0, 3.0]), response_lengths=lengths, response_mask=length_mask(lengths, 4)
        )

        assert token_rewards.tolist() == [[0, 1, 0, 0], [0, 2, 0, 0], [3, 0, 0, 0]]

    def test_an_empty_response_gets_no_token_reward_and_is_compared_by_its_score(self):
        """A-REW-11."""
        lengths, rewards = torch.tensor([0, 2]), torch.tensor([10.0, 0.0])
        mask = length_mask(lengths, 3)

        token_rewards = outcome_token_rewards(rewards=rewards, response_lengths=lengths, response_mask=mask)
        estimate = grpo(rewards=rewards, groups=torch.tensor([0, 0]), response_mask=mask, normalize_by_std=True)

        assert token_rewards.abs().max().item() == 0
        assert estimate.advantages[0].tolist() == [0, 0, 0]
        assert estimate.advantages[1].tolist() == pytest.approx([-math.sqrt(0.5), -math.sqrt(0.5), 0], abs=2e-6)

    def test_the_reward_stands_on_the_last_token_of_the_mask_when_later_ones_are_not_trained_on(self):
        token_rewards = outcome_token_rewards(
            rewards=torch.tensor([1.0, 1.0]),
            response_lengths=torch.tensor([4, 4]),
            response_mask=torch.tensor([[True, False, True, False], [False, False, False, False]]),
        )

        assert token_rewards.tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]

    def test_a_length_shorter_than_the_mask_decides(self):
        token_rewards = outcome_token_rewards(
            rewards=torch.tensor([1.0]), response_lengths=torch.tensor([2]), response_mask=every_token(1, 4)
        )

        assert token_rewards.tolist() == [[0, 1, 0, 0]]

    def test_the_kl_penalty_is_taken_off_inside_the_mask_only(self):
        penalized = add_kl_penalty(
            torch.tensor([[0.0, 1.0, 0.0]]),
            torch.tensor([[2.0, 4.0, NAN]]),
            coef=0.1,
            mask=torch.tensor([[True, True, False]]),
        )

        assert penalized[0].tolist() == pytest.approx([-0.2, 0.6, 0.0])
