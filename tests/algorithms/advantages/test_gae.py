from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rl_compat.algorithms.advantages.gae import (
    AdvantageEstimate,
    add_kl_penalty,
    discounted_returns,
    gae,
    outcome_token_rewards,
    reinforce_plus_plus,
    remax,
    vtrace,
)
from rl_compat.algorithms.masking import length_mask

NAN = float("nan")


def every_token(num_rows: int, num_tokens: int = 2) -> Tensor:
    return torch.ones(num_rows, num_tokens, dtype=torch.bool)


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


class TestReturns:
    @pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
    def test_are_the_discounted_sums_over_the_tokens_of_the_mask(self, responses, gamma):
        """As a double loop over each row with the tokens outside the mask taken out."""
        expected = torch.zeros_like(responses.token_rewards)
        for row in range(6):
            columns = responses.mask[row].nonzero().flatten().tolist()
            for i, column in enumerate(columns):
                later = [responses.token_rewards[row, c].item() for c in columns[i:]]
                expected[row, column] = sum(gamma**k * reward for k, reward in enumerate(later))

        returns = discounted_returns(
            token_rewards=responses.padded_with(responses.token_rewards, NAN), response_mask=responses.mask, gamma=gamma
        )

        assert_close(returns, expected)

    def test_hand_worked_over_a_gap(self):
        returns = discounted_returns(
            token_rewards=torch.tensor([[1.0, 9.0, 2.0, 4.0]]),
            response_mask=torch.tensor([[True, False, True, True]]),
            gamma=0.5,
        )

        assert returns.tolist() == [[1 + 0.5 * 4, 0, 2 + 0.5 * 4, 4]]


class TestReinforcePlusPlus:
    def test_whitens_the_returns_over_the_tokens_of_the_batch(self):
        """Returns 2 and 1, 0 and 0: mean 0.75, sample variance (1.5625 + 0.0625 + 2 * 0.5625) / 3."""
        estimate = reinforce_plus_plus(
            token_rewards=torch.tensor([[1.0, 1.0], [0.0, 0.0]]), response_mask=every_token(2), gamma=1.0
        )

        deviation = math.sqrt(2.75 / 3)
        assert estimate.returns.tolist() == [[2, 1], [0, 0]]
        assert estimate.advantages.flatten().tolist() == pytest.approx(
            [1.25 / deviation, 0.25 / deviation, -0.75 / deviation, -0.75 / deviation], rel=1e-6
        )

    def test_equal_returns_give_exactly_zero(self):
        estimate = reinforce_plus_plus(
            token_rewards=torch.tensor([[0.0, 0.1], [0.0, 0.1]]), response_mask=every_token(2), gamma=1.0
        )

        assert estimate.advantages.abs().max().item() == 0

    def test_matches_the_golden_numbers(self, golden):
        estimate = reinforce_plus_plus(
            token_rewards=golden.input("token_rewards"), response_mask=golden.mask, gamma=0.99
        )

        for part in ("advantages", "returns"):
            expected = golden.output("advantages", "reinforce_plus_plus gamma=0.99", part)
            assert_close(getattr(estimate, part), expected, atol=1e-6, rtol=0)


class TestReMax:
    def test_takes_the_greedy_reward_off_every_token(self):
        estimate = remax(
            token_rewards=torch.tensor([[0.0, -0.25, 1.0], [0.0, 0.0, NAN]]),
            baselines=torch.tensor([0.5, 1.0]),
            response_mask=torch.tensor([[True, True, True], [True, True, False]]),
        )

        assert estimate.advantages.tolist() == [[0.25, 0.25, 0.5], [-1, -1, 0]]
        assert estimate.returns.tolist() == [[0.75, 0.75, 1.0], [0, 0, 0]]

    def test_the_reward_of_the_greedy_response_itself_gives_zero(self):
        estimate = remax(
            token_rewards=torch.tensor([[0.0, 0.1]]), baselines=torch.tensor([0.1]), response_mask=every_token(1)
        )

        assert estimate.advantages.tolist() == [[0, 0]]

    def test_matches_the_golden_numbers(self, golden):
        estimate = remax(
            token_rewards=golden.input("token_rewards"),
            baselines=golden.input("reward_baselines"),
            response_mask=golden.mask,
        )

        for part in ("advantages", "returns"):
            expected = golden.output("advantages", "remax", part).masked_fill(~golden.mask, 0)
            assert_close(getattr(estimate, part), expected, atol=1e-6, rtol=0)


class TestTokenRewards:
    def test_the_reward_stands_on_the_last_token(self):
        """A-ALG-08."""
        lengths = torch.tensor([2, 2, 1])

        token_rewards = outcome_token_rewards(
            rewards=torch.tensor([1.0, 2.0, 3.0]), response_lengths=lengths, response_mask=length_mask(lengths, 4)
        )

        assert token_rewards.tolist() == [[0, 1, 0, 0], [0, 2, 0, 0], [3, 0, 0, 0]]

    def test_an_empty_response_gets_no_token_reward(self):
        """A-REW-11."""
        lengths = torch.tensor([0, 2])

        token_rewards = outcome_token_rewards(
            rewards=torch.tensor([10.0, 0.0]), response_lengths=lengths, response_mask=length_mask(lengths, 3)
        )

        assert token_rewards.abs().max().item() == 0

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


def run(responses, filler: float = 0.0, **settings) -> AdvantageEstimate:
    return vtrace(
        token_rewards=responses.padded_with(responses.token_rewards, filler),
        values=responses.padded_with(responses.values, filler),
        old_logprobs=responses.padded_with(responses.logprobs, filler),
        rollout_logprobs=responses.padded_with(responses.old_logprobs, filler),
        response_mask=responses.mask,
        **settings,
    )


@pytest.mark.parametrize(
    ("gamma", "gae_lambda", "max_rho", "max_c"), [(1.0, 1.0, 1.0, 1.0), (0.9, 0.8, 2.0, 0.7), (0.99, 0.0, 1.0, 1.0)]
)
def test_equals_the_sum_of_the_paper(responses, gamma, gae_lambda, max_rho, max_c):
    """Equation 1 of the paper and the advantage of section 4.2, as loops over the tokens of the mask."""
    returns, advantages = torch.zeros_like(responses.values), torch.zeros_like(responses.values)
    for row in range(6):
        columns = responses.mask[row].nonzero().flatten().tolist()
        ratio = [math.exp(responses.logprobs[row, t] - responses.old_logprobs[row, t]) for t in columns]
        rho, c = [min(max_rho, x) for x in ratio], [gae_lambda * min(max_c, x) for x in ratio]
        rewards = [responses.token_rewards[row, t].item() for t in columns]
        values = [responses.values[row, t].item() for t in columns] + [0.0]
        targets = [0.0] * (len(columns) + 1)
        for s in range(len(columns)):
            targets[s] = values[s] + sum(
                gamma ** (t - s) * math.prod(c[s:t]) * rho[t] * (rewards[t] + gamma * values[t + 1] - values[t])
                for t in range(s, len(columns))
            )
        for s, column in enumerate(columns):
            returns[row, column] = targets[s]
            advantages[row, column] = rho[s] * (rewards[s] + gamma * targets[s + 1] - values[s])

    estimate = run(responses, gamma=gamma, gae_lambda=gae_lambda, max_rho=max_rho, max_c=max_c)

    assert_close(estimate.returns, returns)
    assert_close(estimate.advantages, advantages)


def test_on_policy_returns_are_the_discounted_rewards(responses):
    responses.old_logprobs = responses.logprobs

    estimate = run(responses, gamma=0.9)

    rewards = {"token_rewards": responses.token_rewards, "response_mask": responses.mask}
    assert_close(estimate.returns, discounted_returns(**rewards, gamma=0.9))
    expected = gae(**rewards, values=responses.values, gamma=0.9, gae_lambda=1.0)
    assert_close(estimate.advantages, expected.advantages)


def test_by_hand():
    """Ratios 0.5 and 3 cut to 1, values 1 and 2, reward 4: delta = 0.5 * (2 - 1), 4 - 2."""
    estimate = vtrace(
        token_rewards=torch.tensor([[0.0, 4.0]]),
        values=torch.tensor([[1.0, 2.0]]),
        old_logprobs=torch.tensor([[0.5, 3.0]]).log(),
        rollout_logprobs=torch.zeros(1, 2),
        response_mask=torch.ones(1, 2, dtype=torch.bool),
        gamma=1.0,
    )

    assert estimate.returns[0].tolist() == pytest.approx([1 + 0.5 + 0.5 * (4 - 2), 4])
    assert estimate.advantages[0].tolist() == pytest.approx([0.5 * (4 - 1), 2])


@pytest.mark.parametrize("filler", [float("nan"), 1e6, -math.inf])
def test_padding_changes_nothing(responses, filler):
    for part, expected in zip(run(responses, filler, gamma=0.9), run(responses, gamma=0.9), strict=True):
        assert torch.equal(part, expected)
        assert part[~responses.mask].abs().max().item() == 0


def test_extreme_ratios_in_half_precision_stay_finite_without_a_gradient():
    estimate = vtrace(
        token_rewards=torch.ones(1, 2, dtype=torch.float16),
        values=torch.zeros(1, 2, dtype=torch.float16, requires_grad=True),
        old_logprobs=torch.tensor([[0.0, -500.0]], dtype=torch.float16),
        rollout_logprobs=torch.tensor([[-500.0, 0.0]], dtype=torch.float16),
        response_mask=torch.ones(1, 2, dtype=torch.bool),
        gamma=1.0,
    )

    assert estimate.returns[0].tolist() == pytest.approx([1, 0], abs=1e-6)
    assert not estimate.returns.requires_grad
