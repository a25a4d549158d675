from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from rl_compat.algorithms.kl import KLController, kl_estimate

KINDS = ("k1", "abs", "k2", "k3")
STRAIGHT_THROUGH = ("k1+", "abs+", "k2+", "k3+")
BY_HAND = {
    "k1": lambda r: -r,
    "abs": abs,
    "k2": lambda r: r * r / 2,
    "k3": lambda r: math.exp(r) - r - 1,
}
SLOPES = {
    "k1": lambda r: 1.0,
    "abs": lambda r: -math.copysign(1, r),
    "k2": lambda r: -r,
    "k3": lambda r: 1 - math.exp(r),
}


@pytest.mark.parametrize("kind", [*KINDS, "k3+"])
def test_matches_the_golden_estimates(golden, kind):
    estimate = kl_estimate(kind, logprobs=golden.input("logprobs"), ref_logprobs=golden.input("ref_logprobs"))

    assert_close(estimate, golden.output("kl", kind), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("log_ratio", [-1.7, -0.1, 0.1, 0.5, 2.0])
def test_values_and_slopes_are_those_of_the_formula(kind, log_ratio):
    logprobs = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)

    estimate = kl_estimate(kind, logprobs=logprobs, ref_logprobs=torch.tensor(-1.0 + log_ratio, dtype=torch.float64))
    estimate.backward()

    assert estimate.item() == pytest.approx(BY_HAND[kind](log_ratio))
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(SLOPES[kind](log_ratio))


@pytest.mark.parametrize("kind", STRAIGHT_THROUGH)
@pytest.mark.parametrize("log_ratio", [-1.7, -0.1, 0.1, 0.5, 2.0])
def test_a_plus_keeps_the_value_and_takes_the_slope_of_k2(kind, log_ratio):
    logprobs = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)

    estimate = kl_estimate(kind, logprobs=logprobs, ref_logprobs=torch.tensor(-1.0 + log_ratio, dtype=torch.float64))
    estimate.backward()

    assert estimate.item() == pytest.approx(BY_HAND[kind[:-1]](log_ratio))
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(-log_ratio)


@pytest.mark.parametrize("kind", [*KINDS, *STRAIGHT_THROUGH])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("extreme", [200.0, -200.0, 6e4, -6e4])
def test_extreme_ratios_leave_values_and_gradients_finite(kind, dtype, extreme):
    """A-ALG-09: the clamp comes before the exponential, in float32, and the ordinary token keeps its value."""
    logprobs = torch.tensor([min(0.0, -extreme), -1.0], dtype=dtype, requires_grad=True)
    ref_logprobs = torch.tensor([min(0.0, extreme), -0.9], dtype=dtype)

    estimate = kl_estimate(kind, logprobs=logprobs, ref_logprobs=ref_logprobs)
    estimate.sum().backward()

    assert estimate.dtype == torch.float32
    assert estimate.isfinite().all()
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-3
    assert estimate[1].item() == pytest.approx(BY_HAND[kind.removesuffix("+")](0.1), abs=tolerance)


def test_k3_of_an_ordinary_ratio_is_0_00517():
    """A-ALG-09."""
    estimate = kl_estimate("k3", logprobs=torch.tensor(-1.0), ref_logprobs=torch.tensor(-0.9))

    assert estimate.item() == pytest.approx(0.00517, abs=5e-6)


def test_k3_is_never_negative_and_keeps_small_ratios_apart_from_zero():
    log_ratio = torch.logspace(-4, -1, 100)

    estimate = kl_estimate("k3", logprobs=torch.zeros(100), ref_logprobs=log_ratio)

    assert (estimate > 0).all()
    assert_close(estimate, log_ratio.square() / 2, rtol=0.04, atol=1e-11)


def test_k3_is_held_within_ten():
    assert kl_estimate("k3", logprobs=torch.tensor(-50.0), ref_logprobs=torch.tensor(0.0)).item() == 10


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(kind):
    torch.manual_seed(0)
    logprobs = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    ref_logprobs = torch.randn(3, 4, dtype=torch.float64)

    assert torch.autograd.gradcheck(lambda x: kl_estimate(kind, logprobs=x, ref_logprobs=ref_logprobs), (logprobs,))


@pytest.mark.parametrize("kind", STRAIGHT_THROUGH)
def test_the_mean_gradient_of_a_plus_is_the_gradient_of_the_divergence(kind):
    """Over all tokens of a small vocabulary, each as often as the policy draws it; k3 alone is off."""
    torch.manual_seed(0)
    logits, reference = torch.randn(6, dtype=torch.float64, requires_grad=True), torch.randn(6).double().log_softmax(0)
    policy = logits.log_softmax(0)

    def gradient(loss: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(loss, logits, retain_graph=True)[0]

    def mean_over_samples(kind: str) -> torch.Tensor:
        return (policy.exp().detach() * kl_estimate(kind, logprobs=policy, ref_logprobs=reference)).sum()

    expected = gradient((policy.exp() * (policy - reference)).sum())
    assert_close(gradient(mean_over_samples(kind)), expected)
    assert not torch.allclose(gradient(mean_over_samples("k3")), expected, atol=0.01)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_the_mean_over_samples_is_the_divergence(kind):
    torch.manual_seed(0)
    policy, reference = torch.randn(6).log_softmax(0), torch.randn(6).log_softmax(0)
    drawn = torch.multinomial(policy.exp(), 200_000, replacement=True)

    estimate = kl_estimate(kind, logprobs=policy[drawn], ref_logprobs=reference[drawn]).mean()

    assert_close(estimate, (policy.exp() * (policy - reference)).sum(), rtol=0.03, atol=0)


def test_an_unknown_kind_is_refused():
    with pytest.raises(AssertionError) as error:
        kl_estimate("k4", logprobs=torch.zeros(1), ref_logprobs=torch.zeros(1))  # type: ignore[arg-type]
    assert "`k4`" in str(error.value)


def test_adaptive_controller_matches_the_golden_numbers(golden):
    controller = KLController(coef=0.2, target=6, horizon=10_000)

    coefs = []
    for kl in (3, 6.5, 12, 6):
        controller.update(kl=kl, num_sequences=256)
        coefs.append(controller.coef)

    assert coefs == pytest.approx(golden.numbers["adaptive_kl"], rel=1e-12)


def test_adaptive_controller_moves_at_most_a_fifth_per_horizon():
    controller = KLController(coef=1.0, target=0.1, horizon=64)

    controller.update(kl=1e9, num_sequences=64)

    assert controller.coef == pytest.approx(1.2)


def test_a_nan_measurement_does_not_move_the_coefficient():
    controller = KLController(coef=0.3, target=0.1, horizon=64)

    controller.update(kl=float("nan"), num_sequences=64)

    assert controller.coef == 0.3


def test_adaptive_controller_continues_from_its_state():
    uninterrupted = KLController(coef=0.2, target=6, horizon=1000)
    uninterrupted.update(kl=3, num_sequences=8)
    resumed = KLController(coef=0.2, target=6, horizon=1000)
    resumed.load_state_dict(uninterrupted.state_dict())

    for controller in (uninterrupted, resumed):
        controller.update(kl=9, num_sequences=8)

    assert resumed.coef == uninterrupted.coef != 0.2


def test_fixed_controller_keeps_the_configured_coefficient():
    controller = KLController(coef=0.01)

    controller.update(kl=100, num_sequences=8)
    controller.load_state_dict({"coef": 5.0})

    assert controller.coef == 0.01
    assert controller.state_dict() == {"coef": 0.01}
