"""The learning rate of each optimizer step."""

from __future__ import annotations

import pytest

from rl_compat.training.optimizers import learning_rate


def test_warm_up_rises_and_a_constant_rate_stays() -> None:
    rates = [learning_rate(step, lr=4.0, schedule="constant", warmup_steps=3) for step in range(6)]
    assert rates == [1.0, 2.0, 3.0, 4.0, 4.0, 4.0]


def test_linear_falls_to_the_smallest_rate_at_the_end() -> None:
    rates = [learning_rate(step, lr=1.0, schedule="linear", total_steps=4, min_lr_fraction=0.2) for step in range(5)]
    assert rates == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


def test_cosine_is_half_way_in_the_middle() -> None:
    assert learning_rate(7, lr=2.0, schedule="cosine", warmup_steps=2, total_steps=12) == pytest.approx(1.0)


def test_steps_after_the_total_keep_the_smallest_rate() -> None:
    assert learning_rate(99, lr=1.0, schedule="cosine", total_steps=10, min_lr_fraction=0.1) == pytest.approx(0.1)


def test_another_total_continues_without_a_second_warm_up() -> None:
    """A-CKPT-08: cosine, warm-up 2, stopped at 5 of 10, resumed with 20."""
    options = {"lr": 1.0, "schedule": "cosine", "warmup_steps": 2}
    before = [learning_rate(step, total_steps=10, **options) for step in range(5)]
    after = [learning_rate(step, total_steps=20, **options) for step in range(5, 20)]
    assert before[2] == 1.0
    assert after[0] > before[-1]
    assert after == sorted(after, reverse=True)


def test_a_falling_schedule_needs_the_total() -> None:
    with pytest.raises(AssertionError):
        learning_rate(5, lr=1.0, schedule="linear")
