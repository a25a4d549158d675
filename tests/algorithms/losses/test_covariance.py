from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes.part_settings import loss_numbers
from torch import Tensor

from rl_compat.algorithms.losses.covariance import clip_cov_loss, clip_cov_selection, kl_cov_loss, kl_cov_selection
from rl_compat.algorithms.losses.types import PolicyLossInputs

NAN = float("nan")
ADVANTAGES = torch.tensor([[2.0, 1.0, 0.0], [-1.0, -2.0, NAN]])
LOGPROBS = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -5.0, NAN]])


@pytest.fixture
def inputs() -> PolicyLossInputs:
    """Advantages 2, 1, 0, -1, -2 around 0 and log-probabilities -1 to -5 around -3: covariances 4, 1, 0, 1, 4."""
    return PolicyLossInputs(
        logprobs=LOGPROBS,
        old_logprobs=LOGPROBS,
        advantages=ADVANTAGES,
        response_mask=~ADVANTAGES.isnan(),
        numbers=loss_numbers(clip_cov_fraction=0.4, kl_cov_fraction=0.4, clip_cov_low=0.5, clip_cov_high=5.0),
    )


def numbers_of(inputs: PolicyLossInputs, **changed: float) -> PolicyLossInputs:
    return replace(inputs, numbers=replace(inputs.numbers, **changed))


def places(selection: Tensor) -> list[int]:
    return selection.flatten().nonzero().flatten().tolist()


def test_kl_cov_ties_the_tokens_of_largest_covariance(inputs):
    assert places(kl_cov_selection(inputs)) == [0, 4]


def test_at_least_one_token_is_chosen_and_never_more_than_there_are(inputs):
    assert len(places(kl_cov_selection(numbers_of(inputs, kl_cov_fraction=1e-6)))) == 1
    assert len(places(clip_cov_selection(numbers_of(inputs, clip_cov_fraction=1e-6), 0))) == 1
    assert places(kl_cov_selection(numbers_of(inputs, kl_cov_fraction=9.0))) == [0, 1, 2, 3, 4]


def test_clip_cov_draws_from_between_the_bounds(inputs):
    drawn = [places(clip_cov_selection(inputs, seed)) for seed in range(30)]

    assert all(len(set(chosen) & {0, 1, 3, 4}) == len(chosen) == 2 for chosen in drawn)
    assert {place for chosen in drawn for place in chosen} == {0, 1, 3, 4}


def test_the_bounds_are_exclusive(inputs):
    assert places(clip_cov_selection(numbers_of(inputs, clip_cov_low=1.0, clip_cov_fraction=1.0), 0)) == [0, 4]
    assert places(clip_cov_selection(numbers_of(inputs, clip_cov_high=4.0, clip_cov_fraction=1.0), 0)) == [1, 3]
    assert places(clip_cov_selection(numbers_of(inputs, clip_cov_low=4.0), 0)) == []


def test_the_same_seed_draws_the_same_tokens_whatever_else_was_drawn(inputs):
    first = clip_cov_selection(inputs, 5)
    torch.rand(3)

    assert torch.equal(clip_cov_selection(inputs, 5), first)
    assert any(not torch.equal(clip_cov_selection(inputs, seed), first) for seed in range(6, 12))


def test_a_token_that_the_clip_stops_already_is_not_drawn(inputs):
    """Token 0 has risen by half with a positive advantage."""
    moved = replace(inputs, old_logprobs=LOGPROBS - torch.tensor([[0.4055, 0, 0], [0, 0, 0]]))

    assert places(clip_cov_selection(numbers_of(moved, clip_cov_fraction=1.0), 0)) == [1, 3, 4]


def test_clip_cov_takes_the_selected_tokens_out_of_the_loss(inputs):
    selection = torch.tensor([[True, False, False], [False, False, True]])
    logprobs = LOGPROBS.clone().requires_grad_()

    loss = clip_cov_loss(replace(inputs, logprobs=logprobs, selection=selection))
    loss.losses.sum().backward()

    assert loss.losses.flatten().tolist() == [0, -1, 0, 1, 2, 0]
    assert logprobs.grad is not None
    assert logprobs.grad.flatten().tolist() == [0, -1, 0, 1, 2, 0]
    assert loss.num_clipped.item() == 1


def test_kl_cov_adds_the_distance_on_the_selected_tokens(inputs):
    """Distance 0.5 on all tokens, coefficient 2; sum_kl is of the distance of all five tokens."""
    moved = numbers_of(replace(inputs, old_logprobs=LOGPROBS - 0.5, advantages=torch.zeros(2, 3)), kl_cov_coef=2.0)

    loss = kl_cov_loss(replace(moved, selection=torch.tensor([[True, False, False], [False, True, True]])))

    assert loss.losses.flatten().tolist() == [1, 0, 0, 0, 1, 0]
    assert (loss.sum_kl.item(), loss.num_clipped.item()) == (2.5, 0)


@pytest.mark.parametrize("loss", [clip_cov_loss, kl_cov_loss])
def test_a_missing_selection_is_refused(inputs, loss):
    with pytest.raises(AssertionError) as error:
        loss(inputs)
    assert "selection" in str(error.value)


@pytest.mark.parametrize("number", ["clip_cov_fraction", "kl_cov_fraction"])
def test_a_fraction_of_zero_is_refused(inputs, number):
    select = clip_cov_selection if number.startswith("clip") else kl_cov_selection

    with pytest.raises(AssertionError) as error:
        select(numbers_of(inputs, **{number: 0.0}), 0)
    assert "0" in str(error.value)
