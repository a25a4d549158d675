from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from rl_compat.algorithms.lagrangian import LagrangeMultiplier, constrained_advantages


def multiplier(**changed: float) -> LagrangeMultiplier:
    return LagrangeMultiplier(**{"limit": 1.0, "learning_rate": 0.1, "initial": 2.0, **changed})


def test_it_rises_above_the_limit_and_falls_below_it():
    """log 2 + 0.1 * (4 - 1) * 2 = log 2 + 0.6, and log 2 + 0.1 * (0 - 1) * 2 = log 2 - 0.2."""
    above, below = multiplier(), multiplier()

    above.update(4.0)
    below.update(0.0)

    assert above.value == pytest.approx(2 * math.exp(0.6))
    assert below.value == pytest.approx(2 * math.exp(-0.2))


def test_it_is_gradient_ascent_in_the_logarithm():
    log_multiplier = torch.tensor(math.log(2.0), dtype=torch.float64, requires_grad=True)
    objective = log_multiplier.exp() * (2.5 - 1.0)
    (gradient,) = torch.autograd.grad(objective, log_multiplier)
    measured = multiplier()

    measured.update(2.5)

    assert measured.log_multiplier == pytest.approx((log_multiplier + 0.1 * gradient).item())


def test_at_the_limit_and_without_a_measurement_nothing_changes():
    measured = multiplier()

    for mean_cost in (1.0, math.nan, math.inf, -math.inf):
        measured.update(mean_cost)

    assert measured.value == pytest.approx(2.0)


def test_it_never_reaches_zero_and_never_passes_its_maximum():
    low, high = multiplier(), multiplier(maximum=3.0)

    for _ in range(1000):
        low.update(-100.0)
        high.update(100.0)

    assert low.value > 0
    assert high.value == pytest.approx(3.0)
    high.update(0.0)
    assert high.value < 3.0


def test_it_continues_from_its_state():
    uninterrupted, resumed = multiplier(), multiplier(initial=0.5)
    uninterrupted.update(3.0)

    resumed.load_state_dict(uninterrupted.state_dict())
    for one in (uninterrupted, resumed):
        one.update(0.25)

    assert resumed.value == uninterrupted.value


def test_a_maximum_that_was_lowered_holds_for_a_resumed_multiplier():
    resumed = multiplier(maximum=4.0)

    resumed.load_state_dict({"log_multiplier": math.log(50.0)})

    assert resumed.value == pytest.approx(4.0)


@pytest.mark.parametrize("changed", [{"initial": 0.0}, {"initial": 5.0, "maximum": 4.0}, {"learning_rate": -0.1}])
def test_what_cannot_be_is_refused(changed):
    with pytest.raises(AssertionError):
        multiplier(**changed)


def test_advantages_weigh_the_cost_and_keep_their_size():
    reward, cost = torch.tensor([[3.0, 1.0]]), torch.tensor([[1.0, -1.0]])

    assert constrained_advantages(reward, cost, multiplier=0.0).tolist() == [[3, 1]]
    assert constrained_advantages(reward, cost, multiplier=1.0).tolist() == [[1, 1]]
    assert_close(constrained_advantages(reward, cost, multiplier=1e6), -cost, atol=1e-5, rtol=0)


def test_half_precision_is_combined_in_float32():
    advantages = constrained_advantages(
        torch.tensor([6e4], dtype=torch.float16), torch.tensor([-6e4], dtype=torch.float16), multiplier=3.0
    )

    assert advantages.dtype == torch.float32
    assert advantages.item() == pytest.approx(6e4, rel=1e-3)
