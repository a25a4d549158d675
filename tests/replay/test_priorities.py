"""Draws have the probabilities of their priorities, and the weights make up for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from rl_compat.batch import Batch
from rl_compat.replay.priorities import (
    draw,
    effective_fraction,
    importance_weights,
    inclusion_probabilities,
    priorities,
)

PRIORITIES = some.lists(some.one_of(some.just(0.0), some.floats(1e-6, 1e6)), min_size=1, max_size=40).map(np.array)


@given(PRIORITIES, some.integers(1, 50))
def test_probabilities_sum_to_the_wanted_number_and_follow_the_priorities(priority: np.ndarray, count: int) -> None:
    found = inclusion_probabilities(priority, count)

    assert found.sum() == pytest.approx(min(count, (priority > 0).sum()))
    assert ((found >= 0) & (found <= 1)).all()
    assert (found[priority == 0] == 0).all()
    below = (found > 0) & (found < 1)
    if below.any():
        ratios = found[below] / priority[below]
        assert ratios == pytest.approx(np.full(below.sum(), ratios[0]))
        assert priority[found == 1].min(initial=np.inf) >= priority[below].max()


@given(PRIORITIES, some.integers(1, 50), some.integers(0, 2**32))
def test_a_draw_has_the_wanted_number_of_different_groups(priority: np.ndarray, count: int, seed: int) -> None:
    chosen = draw(inclusion_probabilities(priority, count), np.random.default_rng(seed))

    assert len(set(chosen.tolist())) == len(chosen) == min(count, (priority > 0).sum())
    assert (priority[chosen] > 0).all()


def test_groups_are_drawn_as_often_as_their_probabilities_say() -> None:
    priority = np.array([0.0, 1.0, 2.0, 3.0, 50.0])
    probabilities = inclusion_probabilities(priority, 3)
    generator = np.random.default_rng(0)
    counts = sum(np.bincount(draw(probabilities, generator), minlength=5) for _ in range(20_000))

    assert probabilities == pytest.approx([0, 1 / 3, 2 / 3, 1, 1])
    assert counts / 20_000 == pytest.approx(probabilities, abs=0.01)


def test_for_a_few_of_many_the_probabilities_are_those_of_the_paper() -> None:
    priority = np.random.default_rng(0).random(1000) + 0.1

    assert inclusion_probabilities(priority, 10) == pytest.approx(10 * priority / priority.sum())


def test_fully_weighted_draws_have_the_mean_of_all_groups() -> None:
    """With beta 1, the sum of the drawn values by 1 / probability has the expectation of the sum over all."""
    generator = np.random.default_rng(0)
    priority, values = generator.random(50) + 0.01, generator.normal(size=50)
    probabilities = inclusion_probabilities(priority, 10)
    sums = []
    for _ in range(20_000):
        chosen = draw(probabilities, generator)
        sums.append(
            (values[chosen] * importance_weights(probabilities[chosen], beta=1) / probabilities[chosen].min()).sum()
        )

    assert np.mean(sums) == pytest.approx(values.sum(), abs=4 * np.std(sums) / np.sqrt(len(sums)))


def test_weights_are_a_power_of_the_probability_over_the_largest_weight() -> None:
    probabilities = np.array([0.1, 0.4, 1.0])

    assert importance_weights(probabilities, beta=0) == pytest.approx([1, 1, 1])
    assert importance_weights(probabilities, beta=1) == pytest.approx([1, 0.25, 0.1])
    assert importance_weights(probabilities, beta=0.5) == pytest.approx([1, 0.5, 0.1**0.5])
    assert effective_fraction(np.array([1.0, 1.0, 0.0, 0.0])) == 0.5


def _batch() -> Batch:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]], dtype=torch.bool)
    return Batch(
        prompt_ids=((1,),) * 3,
        response_ids=torch.ones(3, 3, dtype=torch.int64),
        response_mask=mask,
        response_lengths=mask.sum(1),
        groups=torch.tensor([5, 5, 9]),
        truncated=torch.zeros(3, dtype=torch.bool),
        advantages=torch.tensor([[1.0, -3.0, 99.0], [4.0, 99.0, 99.0], [0.0, 0.0, 0.0]]),
        returns=torch.ones(3, 3),
        values=torch.tensor([[0.0, 0.5, 9.0], [1.0, 9.0, 9.0], [2.0, 3.0, 4.0]]),
        old_logprobs=torch.tensor([[-1.0, -1.0, 0.0], [-2.0, 0.0, 0.0], [-1.0, -1.0, -2.0]]),
        rollout_logprobs=torch.tensor([[-1.0, -1.0, 5.0], [-2.0, 5.0, 5.0], [-1.0, -1.0, -1.0]]),
    )


def test_a_priority_is_the_mean_over_tokens_then_over_the_responses_of_a_group() -> None:
    assert priorities(_batch(), "advantage") == {5: 3.0, 9: 0.0}
    assert priorities(_batch(), "td_error") == {5: pytest.approx(0.375), 9: 2.0}
    assert priorities(_batch(), "uniform") == priorities(_batch(), "age") == {5: 1.0, 9: 1.0}
    k3 = np.exp(-1.0) + 1 - 1  # exp(r) - r - 1 with r = -1 on one token of three
    assert priorities(_batch(), "kl") == {5: 1.0, 9: pytest.approx(1 / (1 + k3 / 3))}
    assert priorities(_batch().with_(old_logprobs=None), "kl") == {5: 1.0, 9: 1.0}
