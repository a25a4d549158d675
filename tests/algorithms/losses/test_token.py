from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from fakes.part_settings import loss_numbers

from rl_compat.algorithms.losses.policy import POLICY_LOSSES
from rl_compat.algorithms.losses.token import geo_mean_loss, gspo_loss
from rl_compat.algorithms.losses.types import PolicyLoss, PolicyLossInputs, PolicyLossNumbers


def one_token(*, advantage: float, probability: float, old: float, numbers: PolicyLossNumbers) -> PolicyLossInputs:
    return PolicyLossInputs(
        logprobs=torch.tensor([[math.log(probability)]], dtype=torch.float64),
        old_logprobs=torch.tensor([[math.log(old)]], dtype=torch.float64),
        advantages=torch.tensor([[advantage]], dtype=torch.float64),
        response_mask=torch.tensor([[True]]),
        numbers=numbers,
    )


def run(name: str, *, ratio: float, advantage: float, old: float = 0.01, **numbers: float) -> PolicyLoss:
    inputs = one_token(
        advantage=advantage, probability=old * ratio, old=old, numbers=loss_numbers(clip_dual=3.0, **numbers)
    )
    return POLICY_LOSSES[name].loss(inputs)


@pytest.mark.parametrize(
    ("advantage", "ratio", "expected", "clipped", "clipped_lower"),
    [
        (1.0, 1.5, -1.2, 1, 0),
        (1.0, 0.5, -0.5, 0, 0),
        (-1.0, 0.5, 0.8, 1, 0),
        (-1.0, 1.5, 1.5, 0, 0),
        (-1.0, 10.0, 3.0, 0, 1),
        (0.0, 9.0, 0.0, 0, 0),
    ],
)
def test_ppo_clip_by_hand(advantage, ratio, expected, clipped, clipped_lower):
    loss = run("ppo_clip", ratio=ratio, advantage=advantage)

    assert loss.losses.item() == pytest.approx(expected)
    assert (loss.num_clipped.item(), loss.num_clipped_lower.item()) == (clipped, clipped_lower)
    assert loss.sum_kl.item() == pytest.approx(-math.log(ratio))


def test_clip_higher_lets_a_good_token_rise_further():
    assert run("ppo_clip", ratio=1.25, advantage=1.0, clip_high=0.28).losses.item() == pytest.approx(-1.25)
    assert run("ppo_clip", ratio=1.25, advantage=1.0, clip_high=0.2).losses.item() == pytest.approx(-1.2)


@pytest.mark.parametrize("name", ["ppo_clip", "dppo_tv", "dppo_kl"])
def test_a_dual_clip_of_one_or_less_is_refused(name):
    inputs = one_token(advantage=1.0, probability=0.5, old=0.5, numbers=loss_numbers(clip_dual=1.0))

    with pytest.raises(AssertionError) as error:
        POLICY_LOSSES[name].loss(inputs)
    assert "1.0" in str(error.value)


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl"])
def test_without_a_dual_clip_the_ratio_is_not_truncated(name):
    numbers = loss_numbers(clip_dual=None)
    inputs = one_token(advantage=1.0, probability=0.05, old=0.005, numbers=numbers)

    free = POLICY_LOSSES[name].loss(inputs)
    held = POLICY_LOSSES[name].loss(replace(inputs, numbers=loss_numbers(clip_dual=3.0)))

    assert free.losses.item() == pytest.approx(-10 * math.log(0.05))
    assert held.losses.item() == pytest.approx(-3 * math.log(0.05))
    assert (free.num_clipped_lower.item(), held.num_clipped_lower.item()) == (0, 1)


@pytest.mark.parametrize(("ratio", "factor", "clipped"), [(1.5, 1.2, 1), (0.5, 0.8, 1), (1.1, 1.1, 0)])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_cispo_by_hand(ratio, factor, clipped, advantage):
    loss = run("cispo", ratio=ratio, advantage=advantage)

    assert loss.losses.item() == pytest.approx(-factor * advantage * math.log(0.01 * ratio))
    assert loss.num_clipped.item() == clipped


def test_sapo_by_hand():
    """At ratio 1 the gate is 2 / tau, at ratio 2 and tau 1 it is 4 sigmoid(1)."""
    assert run("sapo", ratio=1.0, advantage=3.0, sapo_tau_positive=2.0).losses.item() == pytest.approx(-3.0)
    assert run("sapo", ratio=1.0, advantage=-3.0, sapo_tau_negative=4.0).losses.item() == pytest.approx(1.5)
    assert run("sapo", ratio=2.0, advantage=1.0).losses.item() == pytest.approx(-4 / (1 + math.exp(-1)))


def test_dro_by_hand():
    loss = run("dro", ratio=2.0, advantage=0.5, dro_beta=0.2)

    assert loss.losses.item() == pytest.approx(-(0.5 * math.log(0.02) - 0.1 * math.log(2) ** 2))


@pytest.mark.parametrize(
    ("name", "number"), [("dro", "dro_beta"), ("sapo", "sapo_tau_positive"), ("sapo", "sapo_tau_negative")]
)
def test_a_number_that_must_be_above_zero_is_refused_at_zero(name, number):
    with pytest.raises(AssertionError) as error:
        run(name, ratio=1.0, advantage=1.0, **{number: 0.0})
    assert "0" in str(error.value)


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl"])
@pytest.mark.parametrize(
    ("old", "ratio", "advantage", "kept"),
    [
        (0.01, 2.9, 1.0, True),  # a rare token may multiply its probability, which PPO would stop
        (0.3, 2.5, 1.0, False),
        (0.3, 2.5, -1.0, True),
        (0.9, 0.5, -1.0, False),
        (0.9, 0.5, 1.0, True),
        (0.9, 0.9, -1.0, True),
    ],
)
def test_dppo_stops_what_moves_much_probability_the_wrong_way(name, old, ratio, advantage, kept):
    loss = run(name, ratio=ratio, advantage=advantage, old=old)

    assert loss.losses.item() == pytest.approx(-advantage * ratio * math.log(old * ratio) if kept else 0)
    assert loss.num_clipped.item() == (not kept)


def test_dppo_kl_measures_the_divergence_of_the_two_way_split():
    """KL(0.5 || 0.75) = 0.5 log(0.5 / 0.75) + 0.5 log(0.5 / 0.25) = 0.14384."""
    below = run("dppo_kl", ratio=1.5, advantage=1.0, old=0.5, clip_high=0.1438)
    above = run("dppo_kl", ratio=1.5, advantage=1.0, old=0.5, clip_high=0.1439)

    assert (below.num_clipped.item(), above.num_clipped.item()) == (1, 0)


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
