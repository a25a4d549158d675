"""Optimizers by name and their parameter groups."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rl_compat.errors import HardwareError
from rl_compat.training.optimizers import OptimizerSettings, build_optimizer, parameter_groups, set_learning_rate


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
