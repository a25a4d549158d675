from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rl_compat.algorithms.advantages.group import optimal_token_baseline, tir_optimal_token_baseline

ESTIMATORS = {
    "optimal_token_baseline": optimal_token_baseline,
    "tir_optimal_token_baseline": tir_optimal_token_baseline,
}


@pytest.fixture
def sum_pi_squared(responses) -> Tensor:
    return torch.rand(6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def slow_loop(responses, sum_pi_squared: Tensor, importance: Tensor | None, *, by_number: bool) -> Tensor:
    """The estimator token by token; tokens of a group meet by column, or by their number within the mask."""
    tokens: list[dict[int, tuple[int, float, float]]] = []
    for b in range(6):
        columns = responses.mask[b].nonzero().flatten().tolist()
        places, weight = {}, 0.0
        for i, t in enumerate(columns):
            energy = 1 - 2 * math.exp(responses.logprobs[b, t]) + sum_pi_squared[b, t].item()
            weight += energy * (1.0 if importance is None else importance[b, t].item() ** 2)
            to_go = sum(responses.token_rewards[b, c].item() for c in columns[i:])
            places[i if by_number else t] = (t, to_go, weight)
        tokens.append(places)
    advantages = torch.zeros(6, 7, dtype=torch.float64)
    for b in range(6):
        others = [other for other in range(6) if responses.groups[other] == responses.groups[b] and other != b]
        longest_other = max(len(tokens[other]) for other in others)
        for place, (t, to_go, _) in tokens[b].items():
            met = [tokens[other][place][1:] for other in [b, *others] if place in tokens[other]]
            baseline = sum(g * w for g, w in met) / (sum(w for _, w in met) + 1e-8)
            advantages[b, t] = to_go if place >= longest_other and len(tokens[b]) > longest_other else to_go - baseline
    return advantages


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_the_formula_token_by_token(responses, sum_pi_squared, name, weighted):
    logprobs = -responses.logprobs.abs()
    responses.logprobs = logprobs
    importance = sum_pi_squared.flip(0) + 0.5 if weighted else None

    estimate = ESTIMATORS[name](
        token_rewards=responses.padded_with(responses.token_rewards, float("nan")),
        logprobs=logprobs,
        sum_pi_squared=sum_pi_squared,
        groups=responses.groups,
        response_mask=responses.mask,
        importance=importance,
    )

    expected = slow_loop(responses, sum_pi_squared, importance, by_number=name.startswith("tir"))
    assert_close(estimate.advantages, expected)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_matches_the_golden_numbers(golden, name):
    estimate = ESTIMATORS[name](
        token_rewards=golden.input("token_rewards"),
        logprobs=golden.input("old_logprobs"),
        sum_pi_squared=golden.input("sum_pi_squared"),
        groups=golden.groups,
        response_mask=golden.mask,
    )

    for part in ("advantages", "returns"):
        expected = golden.output("advantages", name, part).masked_fill(~golden.mask, 0)
        assert_close(getattr(estimate, part), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_surer_row_counts_less_in_the_baseline(name):
    """Energies 1 - 2 * 0.5 + 0.5 = 0.5 and 1 - 2 * 0.25 + 1 = 1.5, so the baseline of 1 and 0 is 0.25."""
    estimate = ESTIMATORS[name](
        token_rewards=torch.tensor([[1.0], [0.0]]),
        logprobs=torch.tensor([[0.5], [0.25]]).log(),
        sum_pi_squared=torch.tensor([[0.5], [1.0]]),
        groups=torch.tensor([3, 3]),
        response_mask=torch.ones(2, 1, dtype=torch.bool),
    )

    assert estimate.advantages.flatten().tolist() == pytest.approx([0.75, -0.25])
    assert estimate.returns.flatten().tolist() == [1, 0]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_group_of_one_and_the_tail_of_the_longest_have_no_baseline(name):
    estimate = ESTIMATORS[name](
        token_rewards=torch.tensor([[0.0, 1.0], [2.0, 0.0], [2.0, 5.0]]),
        logprobs=torch.full((3, 2), 0.5).log(),
        sum_pi_squared=torch.full((3, 2), 0.5),
        groups=torch.tensor([0, 1, 1]),
        response_mask=torch.tensor([[True, True], [True, False], [True, True]]),
    )

    assert estimate.advantages[0].tolist() == [1, 1]
    assert estimate.advantages[1:].flatten().tolist() == pytest.approx([-2.5, 0, 2.5, 5])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_equal_rewards_of_equal_length_give_nothing(name):
    """To the epsilon in the baseline's denominator."""
    estimate = ESTIMATORS[name](
        token_rewards=torch.tensor([[0.0, 0.7]] * 3, dtype=torch.float64),
        logprobs=torch.tensor([[0.2, 0.4], [0.9, 0.1], [0.5, 0.5]], dtype=torch.float64).log(),
        sum_pi_squared=torch.full((3, 2), 0.5, dtype=torch.float64),
        groups=torch.zeros(3, dtype=torch.int64),
        response_mask=torch.ones(3, 2, dtype=torch.bool),
    )

    assert estimate.advantages.abs().max().item() < 1e-7
