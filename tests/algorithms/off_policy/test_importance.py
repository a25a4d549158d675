from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rl_compat.algorithms.off_policy.importance import importance_weights, mismatch_metrics

NAN = float("nan")
RUNS = {
    "token TIS 2.0": {"level": "token", "truncate": 2.0},
    "sequence TIS 2.0": {"level": "sequence", "truncate": 2.0},
    "token IcePop 0.8_1.2": {"level": "token", "band": (0.8, 1.2)},
    "token TIS 1.1 batch-normalised": {"level": "token", "truncate": 1.1, "normalize": True},
}
SETTINGS = [*RUNS.values(), {"level": "sequence", "band": (0.5, 2.0), "normalize": True}, {"level": "token"}]


def of_ratios(ratios: list[list[float]], **settings):
    """Weights for these ratios; NaN is outside the mask."""
    log_ratio = torch.tensor(ratios).log()
    return importance_weights(
        old_logprobs=log_ratio - 3,
        rollout_logprobs=torch.full_like(log_ratio, -3),
        response_mask=~log_ratio.isnan(),
        **settings,
    )


def metric(importance, name: str) -> float:
    return importance.metrics[f"rollout_corr/{name}"]


@pytest.mark.parametrize("run", RUNS)
def test_matches_the_golden_weights_and_metrics(golden, run):
    policies = {
        "old_logprobs": golden.input("old_logprobs"),
        "rollout_logprobs": golden.input("rollout_logprobs"),
        "response_mask": golden.mask,
    }

    importance = importance_weights(**policies, **RUNS[run])

    expected = golden.numbers["rollout_correction"][run]
    assert_close(importance.weights, torch.tensor(expected["weights"]), atol=1e-6, rtol=0)
    measured = importance.metrics | mismatch_metrics(**policies)
    names = {f"rollout_corr/{name}": value for name, value in expected["metrics"].items()}
    assert measured == pytest.approx(names, abs=1e-6)


def test_every_golden_correction_is_compared(golden):
    rejections = {run for run in golden.numbers["rollout_correction"] if run.startswith("rs ")}

    assert set(golden.numbers["rollout_correction"]) == set(RUNS) | rejections
    assert len(rejections) == 3


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"level": "token"}, [[0.5, 4.0, 1.0], [3.0, 0.0, 0.25]]),
        ({"level": "token", "truncate": 2.0}, [[0.5, 2.0, 1.0], [2.0, 0.0, 0.25]]),
        ({"level": "token", "band": (0.4, 3.5)}, [[0.5, 0.0, 1.0], [3.0, 0.0, 0.0]]),
        ({"level": "sequence"}, [[2.0] * 3, [0.75, 0.0, 0.75]]),
        ({"level": "sequence", "truncate": 1.5}, [[1.5] * 3, [0.75, 0.0, 0.75]]),
        ({"level": "sequence", "band": (0.8, 2.5)}, [[2.0] * 3, [0.0] * 3]),
        ({"level": "sequence", "truncate": 1.25, "normalize": True}, [[1.25] * 3, [0.75, 0.0, 0.75]]),
        ({"level": "token", "truncate": 2.25, "normalize": True}, [[0.4, 1.8, 0.8], [1.8, 0.0, 0.2]]),  # / 1.25
    ],
)  # fmt: skip
def test_weights_by_hand(settings, expected):
    importance = of_ratios([[0.5, 4.0, 1.0], [3.0, NAN, 0.25]], **settings)

    assert_close(importance.weights, torch.tensor(expected))


def test_metrics_by_hand():
    """Ratios 0.6, 4, 1, 0.25 truncated at 2: 0.6, 2, 1, 0.25, of mean 0.9625 and mean square 1.355625."""
    importance = of_ratios([[0.6, 4.0, 1.0], [NAN, NAN, 0.25]], level="token", truncate=2.0)

    assert metric(importance, "rollout_is_mean") == pytest.approx(0.9625)
    assert metric(importance, "rollout_is_eff_sample_size") == pytest.approx(0.9625**2 / 1.355625)
    assert metric(importance, "rollout_is_std") == pytest.approx(math.sqrt(1.355625 - 0.9625**2))
    assert metric(importance, "rollout_is_ratio_fraction_high") == 0.25
    assert metric(importance, "rollout_is_ratio_fraction_low") == 0.25
    assert metric(importance, "rollout_is_seq_max") == pytest.approx(3.6 / 3)
    assert metric(importance, "rollout_is_seq_fraction_low") == 0.5


def test_mismatch_by_hand():
    """One response, log-probabilities -1 and -2 for the learner, -2 and -2 for the sampler."""
    metrics = mismatch_metrics(
        old_logprobs=torch.tensor([[-1.0, -2.0, NAN], [NAN, NAN, NAN]]),
        rollout_logprobs=torch.tensor([[-2.0, -2.0, NAN], [NAN, NAN, NAN]]),
        response_mask=torch.tensor([[True, True, False], [False, False, False]]),
    )

    assert {name.removeprefix("rollout_corr/"): value for name, value in metrics.items()} == pytest.approx(
        {
            "kl": -0.5,
            "k3_kl": (math.e - 2) / 2,
            "training_ppl": math.exp(1.5),
            "training_log_ppl": 1.5,
            "rollout_ppl": math.exp(2),
            "rollout_log_ppl": 2.0,
            "log_ppl_diff": -0.5,
            "log_ppl_abs_diff": 0.5,
            "log_ppl_diff_max": -0.5,
            "log_ppl_diff_min": -0.5,
            "ppl_ratio": math.exp(-0.5),
            "chi2_token": (math.exp(2) + 1) / 2 - 1,
            "chi2_seq": math.exp(2) - 1,
        }
    )


def run(responses, rows: Tensor | slice = slice(None), filler: float = 0.0, **settings):
    policies = {
        "old_logprobs": responses.padded_with(responses.logprobs, filler)[rows],
        "rollout_logprobs": responses.padded_with(responses.old_logprobs, filler)[rows],
        "response_mask": responses.mask[rows],
    }
    importance = importance_weights(**policies, **settings)
    return importance.weights, importance.metrics | mismatch_metrics(**policies)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("filler", [NAN, 1e6, -math.inf])
def test_padding_changes_nothing(responses, settings, filler):
    weights, metrics = run(responses, filler=filler, **settings)

    expected = run(responses, **settings)
    assert torch.equal(weights, expected[0])
    assert metrics == expected[1]


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_order_of_rows_and_rows_without_tokens_change_nothing(responses, settings):
    order = torch.tensor([5, 3, 1, 0, 2])  # without the empty row 4

    weights, metrics = run(responses, order, **settings)

    expected = run(responses, **settings)
    assert_close(weights, expected[0][order])
    assert metrics == pytest.approx(expected[1])


@pytest.mark.parametrize("settings", SETTINGS)
def test_nothing_carries_a_gradient_and_extremes_stay_finite(settings):
    old_logprobs = torch.tensor([[-500.0, 0.0, -1.0]], dtype=torch.float16, requires_grad=True)

    importance = importance_weights(
        old_logprobs=old_logprobs,
        rollout_logprobs=torch.tensor([[0.0, -500.0, -1.0]], dtype=torch.float16),
        response_mask=torch.ones(1, 3, dtype=torch.bool),
        **settings,
    )

    assert not importance.weights.requires_grad
    assert importance.weights.dtype == torch.float32
    assert importance.weights.isfinite().all()
    assert all(math.isfinite(value) for value in importance.metrics.values())


def test_weights_that_are_all_zero_are_not_divided_by_their_mean():
    importance = of_ratios([[5.0, 7.0]], level="token", band=(0.9, 1.1), normalize=True)

    assert importance.weights.tolist() == [[0, 0]]
    assert metric(importance, "rollout_is_batch_norm_factor") == 1
    assert metric(importance, "rollout_is_eff_sample_size") == 0


@pytest.mark.parametrize("settings", SETTINGS)
def test_no_tokens_are_no_weights_and_no_metrics(settings):
    importance = of_ratios([[NAN, NAN]], **settings)

    assert importance.weights.tolist() == [[0, 0]]
    assert importance.metrics == {}


def test_truncation_and_a_band_exclude_each_other_and_bounds_are_ordered():
    with pytest.raises(AssertionError) as error:
        of_ratios([[1.0]], level="token", truncate=2.0, band=(0.5, 2.0))
    assert "band" in str(error.value)
    with pytest.raises(AssertionError) as error:
        of_ratios([[1.0]], level="token", band=(2.0, 0.5))
    assert "2.0" in str(error.value)
    assert "0.5" in str(error.value)
