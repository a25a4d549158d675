from __future__ import annotations

import math

import pytest
import torch
from fakes.part_settings import loss_numbers

from rl_compat.algorithms.losses.token import geo_mean_loss, gspo_loss
from rl_compat.algorithms.losses.types import PolicyLossInputs

MASK = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])


def inputs_of(ratios: list[list[float]], advantages: list[float], **more) -> PolicyLossInputs:
    old = torch.full((3, 3), -5.0, dtype=torch.float64)
    return PolicyLossInputs(
        logprobs=old + torch.tensor(ratios, dtype=torch.float64).log(),
        old_logprobs=old,
        advantages=torch.tensor(advantages, dtype=torch.float64)[:, None].expand(3, 3),
        response_mask=MASK,
        numbers=loss_numbers(clip_low=0.1, clip_high=0.1),
        **more,
    )


def test_gspo_clips_the_geometric_mean_of_the_response():
    """Row 0: sqrt(2 * 0.5) = 1. Row 1: (1.2 ^ 3) ^ (1/3) = 1.2, above 1.1."""
    loss = gspo_loss(inputs_of([[2.0, 0.5, 9.0], [1.2, 1.2, 1.2], [7.0, 7.0, 7.0]], [3.0, 1.0, 1.0]))

    assert loss.losses.flatten().tolist() == pytest.approx([-3, -3, 0, -1.1, -1.1, -1.1, 0, 0, 0])
    assert (loss.num_clipped.item(), loss.num_clipped_lower.item()) == (3, 0)
    assert loss.sum_kl.item() == pytest.approx(-3 * math.log(1.2))


def test_gspo_gives_no_gradient_to_a_clipped_response_and_the_ratio_to_the_others():
    inputs = inputs_of([[2.0, 0.5, 9.0], [1.2, 1.2, 1.2], [7.0, 7.0, 7.0]], [3.0, 1.0, 1.0])
    inputs.logprobs.requires_grad_()

    gspo_loss(inputs).losses.sum().backward()

    assert inputs.logprobs.grad is not None
    assert inputs.logprobs.grad.flatten().tolist() == pytest.approx([-3, -3, 0, 0, 0, 0, 0, 0, 0])


def test_geo_mean_clips_each_token_then_multiplies():
    """Row 0, A = 3: log-ratios log 2 held at 0.1 and log 0.5 kept. Row 1, A = -1: log 0.5 held at -0.1, log 2 kept."""
    loss = geo_mean_loss(inputs_of([[2.0, 0.5, 9.0], [0.5, 2.0, 1.0], [7.0, 7.0, 7.0]], [3.0, -1.0, 1.0]))

    first = -3 * math.exp((0.1 + math.log(0.5)) / 2)
    second = math.exp((-0.1 + math.log(2)) / 3)
    assert loss.losses.flatten().tolist() == pytest.approx([first, first, 0, second, second, second, 0, 0, 0])
    assert (loss.num_clipped.item(), loss.num_clipped_lower.item()) == (2, 2)


def test_geo_mean_takes_the_geometric_mean_of_the_weights():
    weights = torch.tensor([[4.0, 1.0, 100.0], [1.0, 8.0, 1.0], [5.0, 5.0, 5.0]], dtype=torch.float64)

    loss = geo_mean_loss(inputs_of([[1.0] * 3] * 3, [1.0, 1.0, 1.0], weights=weights))

    assert loss.losses[:, 0].tolist() == pytest.approx([-2, -2, 0])
