from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rl_compat.algorithms.losses.policy import aggregate
from rl_compat.algorithms.losses.value import explained_variance, value_loss

NAN = float("nan")


def one_token(*, value: float, old_value: float, target: float, clip_value: float | None) -> tuple[float, float]:
    loss = value_loss(
        values=torch.tensor([[value]]),
        old_values=torch.tensor([[old_value]]),
        returns=torch.tensor([[target]]),
        response_mask=torch.tensor([[True]]),
        clip_value=clip_value,
    )
    return loss.losses.item(), loss.num_clipped.item()


def test_hand_worked_errors():
    # moved from 0 to 2 towards 3: held at 0.5 the error is 2.5, larger than 1
    assert one_token(value=2.0, old_value=0.0, target=3.0, clip_value=0.5) == (0.5 * 2.5**2, 1)
    # moved away from the target: its own error is the larger one
    assert one_token(value=-2.0, old_value=0.0, target=3.0, clip_value=0.5) == (0.5 * 5.0**2, 0)
    assert one_token(value=0.25, old_value=0.0, target=3.0, clip_value=0.5) == (0.5 * 2.75**2, 0)
    assert one_token(value=2.0, old_value=0.0, target=3.0, clip_value=None) == (0.5, 0)


def test_a_value_held_by_the_clip_has_no_gradient():
    values = torch.tensor([[2.0, 0.25]], requires_grad=True)

    loss = value_loss(
        values=values,
        old_values=torch.zeros(1, 2),
        returns=torch.full((1, 2), 3.0),
        response_mask=torch.ones(1, 2, dtype=torch.bool),
        clip_value=0.5,
    )
    loss.losses.sum().backward()

    assert values.grad is not None
    assert values.grad.tolist() == [[0.0, -2.75]]


@pytest.mark.parametrize("filler", [0.0, NAN, math.inf])
def test_padding_changes_neither_loss_nor_gradient(responses, filler):
    def run(filler: float) -> tuple[Tensor, Tensor, Tensor]:
        values = responses.padded_with(responses.values, filler).requires_grad_()
        loss = value_loss(
            values=values,
            old_values=responses.padded_with(responses.advantages, filler),
            returns=responses.padded_with(responses.returns, filler),
            response_mask=responses.mask,
            clip_value=0.5,
        )
        (gradient,) = torch.autograd.grad(loss.losses.sum(), values)
        return loss.losses.detach(), loss.num_clipped, gradient

    for measured, expected in zip(run(filler), run(1.0), strict=True):
        assert torch.equal(measured, expected)


def test_gradients_are_those_of_finite_differences(responses):
    values = responses.values.clone().requires_grad_()

    def losses(values: Tensor) -> Tensor:
        return value_loss(
            values=values,
            old_values=responses.advantages,
            returns=responses.returns,
            response_mask=responses.mask,
            clip_value=0.5,
        ).losses

    assert torch.autograd.gradcheck(losses, (values,))


def test_matches_the_golden_value_loss(golden):
    loss = value_loss(
        values=golden.input("new_values"),
        old_values=golden.input("values"),
        returns=golden.input("returns"),
        response_mask=golden.mask,
        clip_value=0.5,
    )
    num_tokens = int(golden.mask.sum())
    total = aggregate(loss.losses, mask=golden.mask, mode="token-mean", num_tokens=num_tokens, num_sequences=6)

    assert_close(total, golden.output("value_loss", "loss"), atol=1e-6, rtol=0)
    assert loss.num_clipped.item() / num_tokens == pytest.approx(golden.numbers["value_loss"]["clipfrac"], abs=1e-6)


def test_explained_variance_is_one_for_the_truth_zero_for_a_constant_and_negative_for_worse():
    returns = torch.tensor([[1.0, 2.0, 4.0, NAN]])
    mask = torch.tensor([[True, True, True, False]])

    assert explained_variance(values=returns + 5, returns=returns, mask=mask).item() == 1
    assert explained_variance(values=torch.zeros(1, 4), returns=returns, mask=mask).item() == 0
    assert explained_variance(values=-returns, returns=returns, mask=mask).item() == pytest.approx(-3)


def test_explained_variance_of_returns_that_do_not_vary_is_zero():
    returns, mask = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool)

    assert explained_variance(values=torch.randn(2, 2), returns=returns, mask=mask).item() == 0
    assert explained_variance(values=returns, returns=returns, mask=~mask).item() == 0
