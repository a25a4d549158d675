from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from rl_compat.algorithms.advantages.gae import AdvantageEstimate, discounted_returns, gae, vtrace


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
