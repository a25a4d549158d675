"""Optimizer states on the host, and weights that wait there."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from rl_compat.training.memory import HostWeights, OffloadedOptimizer
from rl_compat.training.optimizers import OptimizerSettings, build_optimizer

SETTINGS = OptimizerSettings(lr=0.01, weight_decay=0.1)


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def _train(model: nn.Module, optimizer, steps: int) -> None:
    for step in range(steps):
        torch.manual_seed(step)
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
        model.zero_grad()


@pytest.mark.parametrize("bucket_bytes", [1, 150, 10**6])
def test_an_offloaded_optimizer_gives_the_same_weights(bucket_bytes: int) -> None:
    plain, offloaded = _model(), _model()
    build = partial(build_optimizer, settings=SETTINGS)
    _train(plain, build(dict(plain.named_parameters())), steps=3)
    optimizer = OffloadedOptimizer(dict(offloaded.named_parameters()), build, bucket_bytes=bucket_bytes)
    _train(offloaded, optimizer, steps=3)
    for one, other in zip(plain.parameters(), offloaded.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_offloaded_optimizer_leaves_no_gradients() -> None:
    model = _model()
    optimizer = OffloadedOptimizer(dict(model.named_parameters()), partial(build_optimizer, settings=SETTINGS))
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_offloaded_optimizer_reads_parameters_that_were_loaded() -> None:
    model = _model()
    optimizer = OffloadedOptimizer(dict(model.named_parameters()), partial(build_optimizer, settings=SETTINGS))
    with torch.no_grad():
        model[0].weight.fill_(7.0)
    optimizer.read_parameters()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert model[0].weight.min() > 6.9


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.outer = nn.Linear(3, 3, bias=False)
        self.outer.weight = self.inner.weight
        self.register_buffer("table", torch.ones(2))


def test_weights_come_back_to_the_same_parameters() -> None:
    model = _Tied()
    parameter, values = model.inner.weight, model.inner.weight.detach().clone()
    weights = HostWeights(model, "cpu")
    for _ in range(2):
        weights.offload()
        assert weights.away
        weights.onload()
    assert model.inner.weight is parameter
    assert model.outer.weight is parameter
    assert torch.equal(parameter, values)


def test_weights_changed_between_two_absences_come_back_changed() -> None:
    model = _Tied()
    weights = HostWeights(model, "cpu")
    weights.offload()
    weights.onload()
    with torch.no_grad():
        model.inner.weight.fill_(3.0)
        model.table.fill_(2.0)
    weights.offload()
    weights.onload()
    assert model.outer.weight.unique().tolist() == [3.0]


def test_offloading_twice_is_offloading_once() -> None:
    model = _Tied()
    weights = HostWeights(model, "cpu")
    weights.onload()
    weights.offload()
    host = model.inner.weight.data_ptr()
    weights.offload()
    assert model.inner.weight.data_ptr() == host
