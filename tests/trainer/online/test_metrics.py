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


def test_zeros_and_ones_get_the_interval_of_a_proportion() -> None:
    assert mean_interval([1.0, 0.0, 1.0, 1.0]) == proportion_interval(3, 4)


def test_other_values_get_the_normal_interval() -> None:
    low, high = mean_interval([0.2, 0.4])
    assert (low + high) / 2 == pytest.approx(0.3)
    assert high - low == pytest.approx(2 * 1.959964 * 0.1414214 / 2**0.5, rel=1e-5)
