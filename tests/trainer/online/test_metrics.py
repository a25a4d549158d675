"""Intervals and step metrics."""

from __future__ import annotations

import pytest

from rl_compat.trainer.online.metrics import mean_interval, proportion_interval


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
