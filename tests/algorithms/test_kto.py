from __future__ import annotations

import math

import pytest
import torch
from algorithms.preference_cases import PAIRS, numbers
from torch import Tensor

from rl_compat.algorithms.losses.preference import kto_loss, kto_reference_point

MISMATCHED = numbers(-20.0, -31.0, -8.0, -57.0, -15.0, -26.0, -9.0, -61.0)
REF_MISMATCHED = numbers(-21.0, -30.5, -8.25, -58.0, -15.5, -27.0, -8.0, -63.0)
ALL = {
    "logprobs": torch.cat([PAIRS["chosen_logprobs"], PAIRS["rejected_logprobs"]]),
    "ref_logprobs": torch.cat([PAIRS["ref_chosen_logprobs"], PAIRS["ref_rejected_logprobs"]]),
    "desirable": torch.tensor([True] * 4 + [False] * 4),
}


@pytest.mark.parametrize(
    ("swapped", "point", "settings", "expected"),
    [
        (False, 0.53125, {"beta": 0.1}, 0.4992035213622894),
        (False, 0.53125, {"beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.5}, 0.5276483828926852),
        (True, 0.0, {"beta": 0.1}, 0.49923342283886435),
    ],
)
def test_equals_what_trl_1_16_returned_for_these_responses(swapped, point, settings, expected):
    sides = (REF_MISMATCHED, MISMATCHED) if swapped else (MISMATCHED, REF_MISMATCHED)

    reference_point = kto_reference_point(sides[0] - sides[1])
    loss = kto_loss(**ALL, reference_point=reference_point, **settings)

    assert reference_point.item() == point
    assert loss.losses.mean().item() == pytest.approx(expected, rel=1e-12)


def test_by_hand():
    """Log-ratio 1 against a reference point of 3, beta 0.5: sigmoid(1) of a desirable response is lost."""
    loss = kto_loss(
        logprobs=numbers(-4.0, -4.0),
        ref_logprobs=numbers(-5.0, -5.0),
        desirable=torch.tensor([True, False]),
        reference_point=numbers(3.0),
        beta=0.5,
        desirable_weight=2.0,
        undesirable_weight=4.0,
    )

    lost = 1 / (1 + math.exp(-1))
    assert loss.losses.tolist() == pytest.approx([2 * lost, 4 * (1 - lost)])
    assert loss.rewards.tolist() == [0.5, 0.5]


def test_the_reference_point_is_a_mean_without_gradient():
    point = kto_reference_point(numbers(1.0, 2.0).requires_grad_())

    assert point.item() == 1.5
    assert not point.requires_grad


def test_gradients_are_those_of_finite_differences_with_the_reference_point_held():
    logprobs = ALL["logprobs"].clone().requires_grad_()
    point = numbers(0.4).requires_grad_()

    def losses(logprobs: Tensor) -> Tensor:
        return kto_loss(**{**ALL, "logprobs": logprobs}, reference_point=point, beta=0.3).losses

    assert torch.autograd.gradcheck(losses, (logprobs,))
    losses(logprobs).sum().backward()
    assert point.grad is None


def test_extremes_stay_finite_in_half_precision():
    logprobs = torch.tensor([-6e4, 0.0], dtype=torch.float16, requires_grad=True)

    loss = kto_loss(
        logprobs=logprobs,
        ref_logprobs=None,
        desirable=torch.tensor([True, False]),
        reference_point=torch.tensor(0.0),
        beta=0.1,
    )
    loss.losses.sum().backward()

    assert loss.losses.tolist() == [1, 0.5]
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()


def test_a_beta_of_zero_is_refused():
    with pytest.raises(AssertionError) as error:
        kto_loss(**ALL, reference_point=numbers(0.0), beta=0.0)
    assert "0.0" in str(error.value)
