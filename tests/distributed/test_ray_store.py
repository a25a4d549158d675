"""Weights that a policy in a Ray actor has published reach a rollout in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rl_compat.distributed.ray_store import RayStore
from rl_compat.resharding.publish import StoreSource, WeightPublisher
from rl_compat.resharding.sharded import ShardedSource
from rl_compat.resharding.source import WeightReceiver

pytestmark = pytest.mark.ray


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 20))


class Policy:
    """Publishes after every change."""

    def __init__(self) -> None:
        self.model = model()
        source = ShardedSource(self.model, version=0)
        dtypes = dict.fromkeys(source.shapes(), torch.float32)
        self.publisher = WeightPublisher(source, RayStore(), dtypes=dtypes, bucket_bytes=2048)

    def publish(self, version: int) -> Any:
        with torch.no_grad():
            self.model[0].weight[version] += 1.0
        return self.publisher.publish(version=version)

    def weights(self) -> Any:
        return [parameter.detach().numpy() for parameter in self.model.parameters()]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    tests = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(tests.parent), str(tests)])
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    yield ray
    ray.shutdown()


def test_weights_cross_the_object_store(ray: Any) -> None:
    policy = ray.remote(Policy).remote()
    own, source = model(), StoreSource(RayStore(timeout_seconds=30.0))
    receiver = WeightReceiver(own)
    received = []
    for version in (1, 2, 3):
        source.offer(ray.get(policy.publish.remote(version), timeout=60))
        received.append(receiver.receive(source).received_bytes)
        expected = ray.get(policy.weights.remote(), timeout=60)
        assert all(torch.equal(p, torch.tensor(e)) for p, e in zip(own.parameters(), expected, strict=True))
    assert max(received[1:]) < received[0] / 10
