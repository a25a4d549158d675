"""Intervals and step metrics."""

from __future__ import annotations

import math

import pytest
import torch

from rl_compat.batch import Batch
from rl_compat.trainer.online.metrics import mean_interval, proportion_interval, staleness_metrics
from rl_compat.trajectory import Prompt, Trajectory


def test_wilson_interval_of_a_worked_example() -> None:
    """40 of 100: centre (0.4 + z²/200) / (1 + z²/100), half width by the same formula, worked by hand."""
    low, high = proportion_interval(40, 100)
    assert low == pytest.approx(0.3094, abs=1e-4)
    assert high == pytest.approx(0.4980, abs=1e-4)


def test_an_interval_of_no_successes_starts_at_zero_and_has_width() -> None:
    low, high = proportion_interval(0, 48)
    assert low == pytest.approx(0.0, abs=1e-12)
    assert 0.05 < high < 0.1


def test_the_interval_of_a_mean_is_the_normal_one_within_the_range_of_the_values() -> None:
    """Half width 1.96 s / sqrt(n), worked by hand."""
    low, high = mean_interval([0.0, 0.2, 0.4, 0.2, 0.2]) or (None, None)
    assert (low, high) == (pytest.approx(0.2 - 0.12396, abs=1e-5), pytest.approx(0.2 + 0.12396, abs=1e-5))


def test_a_score_that_cannot_be_above_0_has_no_interval_above_0() -> None:
    low, high = mean_interval([0.0, 0.0, 0.0, -0.5]) or (None, None)
    assert (low, high) == (pytest.approx(-0.37, abs=1e-4), 0.0)


@pytest.mark.parametrize("values", [[0.0] * 48, [1.0] * 3, [0.3]])
def test_equal_values_have_no_interval(values: list[float]) -> None:
    assert mean_interval(values) is None


def test_staleness_is_that_of_the_oldest_token_and_the_sample_size_that_of_a_loop_over_tokens() -> None:
    versions = [(5, 5, 6), (3, 6), (6,), ()]
    old, rollout = ([[-1.0, -2.5, -0.5], [-3.0, -0.25], [-1.0], []], [[-1.5, -2.0, -0.5], [-1.0, -4.0], [-1.25], []])
    batch = Batch.from_trajectories(
        [
            Trajectory(
                prompt=Prompt(token_ids=(7,), text=""),
                group=row,
                response_ids=(9,) * len(of_row),
                rollout_logprobs=tuple(rollout[row]),
                finish_reason="stop",
                policy_versions=of_row,
            )
            for row, of_row in enumerate(versions)
        ]
    )
    padded = torch.tensor([[*of_row, *[99.0] * (3 - len(of_row))] for of_row in old])

    found = staleness_metrics(batch.with_(old_logprobs=padded), version=6)

    pairs = (pair for rows in zip(old, rollout, strict=True) for pair in zip(*rows, strict=True))
    ratios = [math.exp(now - then) for now, then in pairs]
    assert found == {
        "async/staleness/0": pytest.approx(1 / 3),
        "async/staleness/1": pytest.approx(1 / 3),
        "async/staleness/2": 0.0,
        "async/staleness/3": pytest.approx(1 / 3),
        "async/staleness/mean": pytest.approx(4 / 3),
        "async/staleness/max": 3.0,
        "async/ess": pytest.approx(sum(ratios) ** 2 / (len(ratios) * sum(ratio**2 for ratio in ratios))),
    }
