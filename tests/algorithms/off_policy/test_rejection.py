from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rl_compat.algorithms.off_policy.importance import mismatch_metrics
from rl_compat.algorithms.off_policy.rejection import Rejection, rejection_mask
from rl_compat.algorithms.off_policy.rejection_rules import RULE_NAMES, parse_rejection_rule, parse_rejection_rules

NAN = float("nan")


class TestRules:
    @pytest.mark.parametrize(
        ("text", "low", "high"),
        [
            ("token_k1:0.8_1.25", math.log(0.8), math.log(1.25)),
            ("seq_sum_k1:2", -math.log(2), math.log(2)),
            (" seq_mean_k1:0.999_1.001 ", math.log(0.999), math.log(1.001)),
            ("token_k2:0.05", None, 0.05),
            ("seq_max_k3:1e-3", None, 0.001),
        ],
    )
    def test_bounds_are_read_as_written(self, text, low, high):
        rule = parse_rejection_rule(text)

        assert (rule.low, rule.high) == (low if low is None else pytest.approx(low), pytest.approx(high))
        assert f"{rule.scope}_{rule.statistic}" == rule.name == text.strip().split(":")[0]

    @pytest.mark.parametrize("name", RULE_NAMES)
    def test_every_rule_can_be_written(self, name):
        rules = parse_rejection_rules([f"{name}:1.5"])

        assert [rule.name for rule in rules] == [name]

    @pytest.mark.parametrize(
        ("text", "literals"),
        [
            ("token_k4:1", ["`token_k4`", "token_k1", "seq_max_k3"]),
            ("seq_max_k1:2", ["`seq_max_k1`"]),
            ("token_k1", ["`token_k1`", "`token_k1:0.8_1.25`"]),
            ("token_k3", ["`token_k3:0.02`"]),
            ("token_k2:0.1_0.2", ["`token_k2:0.1_0.2`", "2", "`token_k2`"]),
            ("token_k1:0.1_0.2_0.3", ["`token_k1:0.1_0.2_0.3`", "3"]),
            ("token_k1:much", ["`much`", "`token_k1:much`"]),
            ("token_k1:", ["``", "`token_k1:`"]),
            ("token_k3:0", ["`0`", "`token_k3:0`"]),
            ("token_k3:-1", ["`-1`", "`token_k3:-1`"]),
            ("token_k3:nan", ["`nan`", "`token_k3:nan`"]),
            ("token_k3:inf", ["`inf`", "`token_k3:inf`"]),
            ("token_k1:1.25_0.8", ["1.25", "0.8"]),
            ("token_k1:0.5", ["2", "0.5"]),
        ],
    )
    def test_an_invalid_rule_is_an_error_that_quotes_it(self, text, literals):
        with pytest.raises(ValueError) as caught:
            parse_rejection_rule(text)

        assert all(literal in str(caught.value) for literal in literals)

    def test_a_rule_given_twice_is_refused(self):
        with pytest.raises(ValueError) as error:
            parse_rejection_rules(["token_k3:1", "token_k2:1", "token_k3:2"])
        assert "`token_k3`" in str(error.value)
        assert "2" in str(error.value)


@pytest.mark.parametrize(
    ("run", "rule"),
    [
        ("rs token_k1 0.8_1.25", "token_k1:0.8_1.25"),
        ("rs seq_mean_k3 0.02", "seq_mean_k3:0.02"),
        ("rs seq_max_k2 0.05", "seq_max_k2:0.05"),
    ],
)
def test_matches_the_golden_masks_and_metrics(golden, run, rule):
    policies = {
        "old_logprobs": golden.input("old_logprobs"),
        "rollout_logprobs": golden.input("rollout_logprobs"),
        "response_mask": golden.mask,
    }

    rejection = rejection_mask(**policies, rules=[parse_rejection_rule(rule)])

    expected = golden.numbers["rollout_correction"][run]
    assert rejection.mask.tolist() == expected["mask"]
    names = {f"rollout_corr/{name}": value for name, value in expected["metrics"].items()}
    assert rejection.metrics | mismatch_metrics(**policies) == pytest.approx(names, abs=1e-6)


def of_ratios(ratios: list[list[float]], *rules: str) -> Rejection:
    """What the rules keep of these ratios of learner to sampler; NaN is outside the mask."""
    log_ratio = torch.tensor(ratios, dtype=torch.float64).log()
    return rejection_mask(
        old_logprobs=log_ratio - 3,
        rollout_logprobs=torch.full_like(log_ratio, -3),
        response_mask=~log_ratio.isnan(),
        rules=parse_rejection_rules(rules),
    )


RATIOS = [[2.0, 0.5, 1.0], [3.0, 1.0, NAN], [1.0, 1.01, 1.0]]


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ("token_k1:0.4_1.5", [[1, 0, 1], [0, 1, 0], [1, 1, 1]]),  # tests one over the ratio: 0.5, 2, 1; 0.33; 0.99
        ("token_k1:0.3_2.5", [[1, 1, 1], [1, 1, 0], [1, 1, 1]]),
        ("token_k2:0.25", [[1, 1, 1], [0, 1, 0], [1, 1, 1]]),  # log(2)^2 / 2 = 0.240, log(3)^2 / 2 = 0.603
        ("token_k3:0.2", [[0, 1, 1], [0, 1, 0], [1, 1, 1]]),  # 0.307, 0.193; 0.901
        ("seq_sum_k1:0.5_2", [[1, 1, 1], [0, 0, 0], [1, 1, 1]]),  # products 1, 3, 1.01
        ("seq_mean_k1:0.6_2", [[1, 1, 1], [0, 0, 0], [1, 1, 1]]),  # 1 / sqrt(3) = 0.577
        ("seq_mean_k1:0.5_2", [[1, 1, 1], [1, 1, 0], [1, 1, 1]]),
        ("seq_sum_k2:0.49", [[1, 1, 1], [0, 0, 0], [1, 1, 1]]),  # 0.480, 0.603
        ("seq_sum_k2:0.47", [[0, 0, 0], [0, 0, 0], [1, 1, 1]]),
        ("seq_mean_k2:0.2", [[1, 1, 1], [0, 0, 0], [1, 1, 1]]),  # 0.160, 0.302
        ("seq_sum_k3:0.51", [[1, 1, 1], [0, 0, 0], [1, 1, 1]]),  # 0.5, 0.901
        ("seq_mean_k3:0.16", [[0, 0, 0], [0, 0, 0], [1, 1, 1]]),  # 0.167, 0.451
        ("seq_max_k2:0.3", [[1, 1, 1], [0, 0, 0], [1, 1, 1]]),
        ("seq_max_k3:0.3", [[0, 0, 0], [0, 0, 0], [1, 1, 1]]),
    ],
)
def test_rules_by_hand(rule, kept):
    assert of_ratios(RATIOS, rule).mask.int().tolist() == kept


def test_several_rules_must_all_keep_a_token():
    rejection = of_ratios(RATIOS, "token_k1:0.4_1.5", "seq_max_k2:0.3")

    assert rejection.mask.int().tolist() == [[1, 0, 1], [0, 0, 0], [1, 1, 1]]
    assert rejection.metrics["rollout_corr/rollout_rs_masked_fraction"] == 3 / 8
    assert rejection.metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == 2 / 3
    assert rejection.metrics["rollout_corr/rollout_rs_token_k1_masked_fraction"] == 2 / 8
    assert rejection.metrics["rollout_corr/rollout_rs_seq_max_k2_masked_fraction"] == 2 / 8


def test_no_rules_or_no_tokens_reject_nothing():
    without_rules, without_tokens = of_ratios(RATIOS), of_ratios([[NAN, NAN]], "token_k3:0.1")

    assert without_rules.mask.int().tolist() == [[1, 1, 1], [1, 1, 0], [1, 1, 1]]
    assert without_tokens.mask.tolist() == [[False, False]]
    assert without_rules.metrics == without_tokens.metrics == {}


@pytest.mark.parametrize("name", RULE_NAMES)
def test_padding_order_and_rows_without_tokens_change_nothing(responses, name):
    def run(order: Tensor, filler: float) -> Rejection:
        return rejection_mask(
            old_logprobs=responses.padded_with(0.3 * responses.logprobs, filler)[order],
            rollout_logprobs=responses.padded_with(0.3 * responses.old_logprobs, filler)[order],
            response_mask=responses.mask[order],
            rules=[parse_rejection_rule(f"{name}:{1.4 if name.endswith('k1') else 0.1}")],
        )

    order = torch.tensor([5, 3, 1, 0, 2])
    rejection, expected = run(order, NAN), run(torch.arange(6), -2.0)

    assert torch.equal(rejection.mask, expected.mask[order])
    assert rejection.metrics == pytest.approx(expected.metrics)
    assert 0 < rejection.mask.sum() < responses.mask.sum()


@pytest.mark.parametrize("name", RULE_NAMES)
def test_extreme_ratios_are_rejected_with_finite_metrics(name):
    rejection = rejection_mask(
        old_logprobs=torch.tensor([[-500.0, 0.0]], dtype=torch.float16, requires_grad=True),
        rollout_logprobs=torch.tensor([[0.0, -600.0]], dtype=torch.float16),
        response_mask=torch.ones(1, 2, dtype=torch.bool),
        rules=[parse_rejection_rule(f"{name}:2")],
    )

    assert all(math.isfinite(value) for value in rejection.metrics.values())
    if name in ("seq_sum_k1", "seq_mean_k1"):  # held within 20, the two cancel
        assert rejection.mask.all()
    else:
        assert not rejection.mask.any()
