from __future__ import annotations

import math

import pytest
import torch
from algorithms.preference_cases import LENGTHS, PAIRS, numbers
from torch import Tensor
from torch.testing import assert_close

from rl_compat.algorithms.losses.preference import bradley_terry_loss, dpo_loss, kto_loss, kto_reference_point


def one_pair(chosen: float, rejected: float, **settings):
    """The loss of one pair whose log-ratios to the reference are these."""
    loss = dpo_loss(
        chosen_logprobs=numbers(chosen - 7),
        rejected_logprobs=numbers(rejected - 9),
        ref_chosen_logprobs=numbers(-7.0),
        ref_rejected_logprobs=numbers(-9.0),
        **settings,
    )
    return loss.losses.item()


class TestDPO:
    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            ({"loss": "sigmoid", "beta": 0.1}, 0.7046074975110462),
            ({"loss": "sigmoid", "beta": 0.5}, 0.9890416039021349),
            ({"loss": "hinge", "beta": 0.2}, 1.0),
            ({"loss": "ipo", "beta": 0.1, **LENGTHS}, 21.325284895833335),
            ({"loss": "sigmoid", "beta": 2.0, **LENGTHS}, 0.5913596056748198),
        ],
    )
    def test_equals_what_trl_1_16_returned_for_these_pairs(self, settings, expected):
        loss = dpo_loss(**PAIRS, **settings)

        assert loss.losses.mean().item() == pytest.approx(expected, rel=1e-12)

    def test_label_smoothing_equals_what_trl_1_16_returned(self):
        """Its `aot` loss is this one on differences that are sorted first."""
        difference = PAIRS["chosen_logprobs"] - PAIRS["rejected_logprobs"]
        ref_difference = PAIRS["ref_chosen_logprobs"] - PAIRS["ref_rejected_logprobs"]

        loss = dpo_loss(
            chosen_logprobs=difference.sort().values,
            rejected_logprobs=torch.zeros(4, dtype=torch.float64),
            ref_chosen_logprobs=ref_difference.sort().values,
            ref_rejected_logprobs=torch.zeros(4, dtype=torch.float64),
            beta=0.1,
            label_smoothing=0.1,
        )

        assert loss.losses.mean().item() == pytest.approx(0.7028100884930694, rel=1e-12)

    def test_rewards_are_beta_times_the_log_ratios(self):
        loss = dpo_loss(**PAIRS, beta=0.5, **LENGTHS)

        assert loss.chosen_rewards.tolist() == [0.25, -0.625, 1.25, -1.5]
        assert loss.rejected_rewards.tolist() == [-0.25, 0.625, -1.375, 0.25]

    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            ({"loss": "sigmoid", "beta": 0.1}, math.log(1 + math.exp(-0.3))),
            ({"loss": "ipo", "beta": 0.1}, (3 - 5) ** 2),
            ({"loss": "hinge", "beta": 0.1}, 0.7),
            ({"loss": "hinge", "beta": 0.5}, 0.0),
            (
                {"beta": 0.1, "label_smoothing": 0.2},
                0.8 * math.log(1 + math.exp(-0.3)) + 0.2 * math.log(1 + math.exp(0.3)),
            ),
            (
                {"beta": 1.0, "chosen_lengths": torch.tensor([4]), "rejected_lengths": torch.tensor([2])},
                math.log(1 + math.exp(-(2 / 4 + 1 / 2))),
            ),
        ],
    )
    def test_by_hand(self, settings, expected):
        assert one_pair(2.0, -1.0, **settings) == pytest.approx(expected)

    def test_at_the_reference_every_pair_costs_log_two(self):
        assert one_pair(0.0, 0.0, beta=0.1) == pytest.approx(math.log(2))

    def test_label_smoothing_is_least_where_the_odds_are_those_of_the_labels(self):
        """At sigmoid(beta h) = 1 - e the two gradients cancel."""
        chosen = numbers(math.log(0.8 / 0.2) / 0.1).requires_grad_()

        loss = dpo_loss(
            chosen_logprobs=chosen,
            rejected_logprobs=numbers(0.0),
            ref_chosen_logprobs=None,
            ref_rejected_logprobs=None,
            beta=0.1,
            label_smoothing=0.2,
        )
        loss.losses.sum().backward()

        assert chosen.grad is not None
        assert chosen.grad.item() == pytest.approx(0, abs=1e-12)

    def test_without_a_reference_only_the_policy_counts(self):
        free = dpo_loss(**{**PAIRS, "ref_chosen_logprobs": None, "ref_rejected_logprobs": None}, beta=0.1)

        zeros = torch.zeros(4, dtype=torch.float64)
        expected = dpo_loss(**{**PAIRS, "ref_chosen_logprobs": zeros, "ref_rejected_logprobs": zeros}, beta=0.1)
        assert torch.equal(free.losses, expected.losses)

    @pytest.mark.parametrize("loss", ["sigmoid", "ipo", "hinge"])
    @pytest.mark.parametrize("lengths", [{}, LENGTHS])
    def test_gradients_are_those_of_finite_differences_and_none_reaches_the_reference(self, loss, lengths):
        tensors = {name: x.clone().requires_grad_() for name, x in PAIRS.items()}

        def losses(chosen: Tensor, rejected: Tensor) -> Tensor:
            given = {**tensors, "chosen_logprobs": chosen, "rejected_logprobs": rejected}
            return dpo_loss(**given, beta=0.3, loss=loss, **lengths).losses

        assert torch.autograd.gradcheck(losses, (tensors["chosen_logprobs"], tensors["rejected_logprobs"]))
        losses(tensors["chosen_logprobs"], tensors["rejected_logprobs"]).sum().backward()
        assert tensors["ref_chosen_logprobs"].grad is None

    def test_the_gradient_of_sigmoid_is_the_closed_form(self):
        """-beta sigmoid(-beta h), equation 7 of the paper's appendix."""
        chosen = PAIRS["chosen_logprobs"].clone().requires_grad_()

        dpo_loss(**{**PAIRS, "chosen_logprobs": chosen}, beta=0.5).losses.sum().backward()

        assert_close(chosen.grad, -0.5 * torch.sigmoid(-0.5 * numbers(1.0, -2.5, 5.25, -3.5)))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
    @pytest.mark.parametrize("loss", ["sigmoid", "ipo", "hinge"])
    def test_extreme_log_ratios_stay_finite(self, dtype, loss):
        chosen = torch.tensor([-6e4, 0.0], dtype=dtype, requires_grad=True)

        result = dpo_loss(
            chosen_logprobs=chosen,
            rejected_logprobs=torch.tensor([0.0, -6e4], dtype=dtype),
            ref_chosen_logprobs=torch.tensor([0.0, -6e4], dtype=dtype),
            ref_rejected_logprobs=torch.tensor([-6e4, 0.0], dtype=dtype),
            beta=0.1,
            loss=loss,
        )
        (result.losses / (1e6 if loss == "ipo" else 1)).sum().backward()

        assert result.losses.dtype == torch.float32
        assert result.losses.isfinite().all()
        assert chosen.grad is not None
        assert chosen.grad.isfinite().all()

    @pytest.mark.parametrize(
        ("settings", "literal"),
        [
            ({"beta": 0.0}, "beta"),
            ({"beta": 0.1, "label_smoothing": 0.5}, "label_smoothing"),
            ({"beta": 0.1, "label_smoothing": 0.1, "loss": "ipo"}, "`ipo`"),
            ({"beta": 0.1, "chosen_lengths": torch.tensor([1])}, "lengths"),
            ({"beta": 0.1, "loss": "exo"}, "exo"),
        ],
    )
    def test_invalid_arguments_are_refused(self, settings, literal):
        with pytest.raises(AssertionError) as error:
            one_pair(1.0, 0.0, **settings)
        assert literal in str(error.value)


class TestBradleyTerry:
    def test_by_hand(self):
        losses = bradley_terry_loss(chosen_rewards=numbers(2.0, 0.0), rejected_rewards=numbers(1.0, 0.0))

        assert losses.tolist() == pytest.approx([math.log(1 + math.exp(-1)), math.log(2)])

    def test_a_margin_asks_for_more(self):
        losses = bradley_terry_loss(
            chosen_rewards=numbers(2.0, 5.0), rejected_rewards=numbers(1.0, 1.0), margins=numbers(1.0, 3.0)
        )

        assert losses.tolist() == pytest.approx([math.log(2), math.log(1 + math.exp(-1))])

    def test_gradients_are_those_of_finite_differences(self):
        chosen, rejected = numbers(2.0, -1.0).requires_grad_(), numbers(1.0, 3.0).requires_grad_()

        assert torch.autograd.gradcheck(
            lambda c, r: bradley_terry_loss(chosen_rewards=c, rejected_rewards=r, margins=numbers(0.5, 0.0)),
            (chosen, rejected),
        )

    def test_extremes_stay_finite_in_half_precision(self):
        losses = bradley_terry_loss(
            chosen_rewards=torch.tensor([-6e4, 6e4], dtype=torch.float16),
            rejected_rewards=torch.tensor([6e4, -6e4], dtype=torch.float16),
        )

        assert losses.dtype == torch.float32
        assert losses.isfinite().all()


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
