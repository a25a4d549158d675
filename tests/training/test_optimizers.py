"""Optimizers by name and their parameter groups."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rl_compat.errors import HardwareError
from rl_compat.training.optimizers import (
    OptimizerSettings,
    build_optimizer,
    learning_rate,
    parameter_groups,
    set_learning_rate,
)


def _parameters() -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    return {"matrix": nn.Parameter(torch.randn(64, 80)), "norm": nn.Parameter(torch.ones(80))}


def test_only_matrices_decay() -> None:
    parameters = _parameters()
    groups = parameter_groups(parameters, weight_decay=0.1)
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.1), (1, 0.0)]
    assert groups[1]["params"][0] is parameters["norm"]


def test_adamw_moves_by_the_learning_rate_in_its_first_step() -> None:
    parameters = _parameters()
    before = parameters["norm"].detach().clone()
    optimizer = build_optimizer(parameters, OptimizerSettings(lr=0.01))
    for parameter in parameters.values():
        parameter.grad = torch.full_like(parameter, 2.0)
    optimizer.step()
    torch.testing.assert_close(parameters["norm"], before - 0.01)


def test_adamw8bit_follows_adamw() -> None:
    pytest.importorskip("bitsandbytes")
    exact, short = _parameters(), _parameters()
    for parameters, name in ((exact, "adamw"), (short, "adamw8bit")):
        optimizer = build_optimizer(parameters, OptimizerSettings(name=name, lr=0.01, weight_decay=0.0))
        for step in range(5):
            torch.manual_seed(step)
            for parameter in parameters.values():
                parameter.grad = torch.randn_like(parameter) + 0.5
            optimizer.step()
    difference = (exact["matrix"] - short["matrix"]).abs()
    assert difference.mean() < 0.003
    assert not torch.equal(exact["matrix"], short["matrix"])


def test_the_first_rate_is_that_of_the_warm_up() -> None:
    optimizer = build_optimizer(_parameters(), OptimizerSettings(lr=1.0, warmup_steps=3))
    assert {group["lr"] for group in optimizer.param_groups} == {0.25}
    set_learning_rate(optimizer, 0.5)
    assert {group["lr"] for group in optimizer.param_groups} == {0.5}


def test_an_unknown_optimizer_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(HardwareError, match="`adamw8bit`"):
        build_optimizer(_parameters(), OptimizerSettings(lr=0.1, name="adam8bit"))


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
