"""Weights that a rollout reads where the policy has them."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from fakes.engines import causal_lm, load_settings, random_batch, role_plan
from fakes.handover_ranks import own_model, session, tokens
from torch import Tensor, nn

from rl_compat.errors import ModelError
from rl_compat.resharding.layout import Division, Placement, RankMesh
from rl_compat.resharding.mapped import MappedSource, MappedWeights, WeightMapper, joined_parts
from rl_compat.resharding.sharded import ShardedSource
from rl_compat.resharding.source import WeightReceiver
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.workers.policy import PolicySettings, PolicyWorker


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a.cpu(), b.cpu().to(a)) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_rollout_copies_what_the_policy_has_once_for_each_version(llama_folder: Path) -> None:
    optimizer = OptimizerSettings(lr=1e-2)
    settings = PolicySettings(
        model=load_settings(llama_folder, role=role_plan()), temperature=1.0, num_epochs=1, optimizer=optimizer
    )
    policy, own, elsewhere = PolicyWorker(settings), own_model(llama_folder), MappedSource()
    receiver, engine = WeightReceiver(own), session(own)
    for version in range(3):
        mapped = policy.map_weights()
        assert bool(mapped.parts) is (version == 0), "addresses are told once"
        elsewhere.offer(mapped)
        handover = receiver.receive(elsewhere)
        assert same(own, policy.engine.model)
        assert (handover.version, handover.peak_bytes) == (version, 0)
        assert handover.received_bytes == sum(parameter.nbytes for parameter in own.parameters())
        engine.load(elsewhere)
        assert {number for _, versions in tokens(engine) for number in versions} == {version}
        policy.update(batch=random_batch(), seed=1)


class Divided:
    """The share of one rank of a policy whose weights are divided along their rows; the ranks in pairs are copies."""

    def __init__(self, weights: dict[str, Tensor], rank: int) -> None:
        mesh = RankMesh((("replicas", 2), ("shards", 2)), (0, 1, 2, 3))
        self.weights, self.rank, self.trained = weights, rank, frozenset(list(weights)[:1])
        self.layout = {name: Placement(mesh, (Division("shards", 0),)) for name in weights}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(weight.shape) for name, weight in self.weights.items()}

    def parts(self) -> dict[str, Any]:
        from rl_compat.resharding.transport import HeldPart

        found = {}
        for name, weight in self.weights.items():
            box = self.layout[name].box(tuple(weight.shape), self.rank)
            (start, stop), *_ = box
            found[name] = HeldPart(weight[start:stop], box)
        return found


@pytest.mark.parametrize("reader", [0, 1])
def test_parts_of_all_ranks_become_whole_weights_in_the_dtype_of_the_rollout(reader: int) -> None:
    torch.manual_seed(0)
    policy, own = nn.Linear(6, 5), nn.Linear(6, 5, dtype=torch.bfloat16)
    weights = {name: parameter.detach() for name, parameter in policy.named_parameters()}
    mappers = [WeightMapper(Divided(weights, rank)) for rank in range(4)]  # type: ignore[arg-type]
    source, receiver = MappedSource(reader), WeightReceiver(own)
    source.offer(joined_parts([mapper.publish(version=1) for mapper in mappers]))
    assert receiver.receive(source).num_weights == 2
    assert same(own, policy)
    streamed: dict[str, Tensor] = {}

    def load(tensors: Iterator[tuple[str, Tensor]]) -> None:
        streamed.update((name, tensor.clone()) for name, tensor in tensors)

    assert source.stream(load, dtype=torch.bfloat16).peak_bytes == policy.weight.nbytes
    assert all(torch.equal(streamed[name], weight) for name, weight in weights.items())
    weights["weight"] += 1.0
    source.offer(joined_parts([mapper.publish(version=2) for mapper in mappers]))
    assert receiver.receive(source).num_weights == 1, "frozen weights are read once"
    assert same(own, policy)


def test_the_weights_of_another_model_are_refused() -> None:
    source = MappedSource()
    source.offer(WeightMapper(ShardedSource(nn.Linear(3, 2), version=0)).publish(version=0))
    with pytest.raises(ModelError, match="weight"):
        WeightReceiver(nn.Linear(2, 2)).receive(source)


def learning_process(folder: str, pipe: Connection) -> None:
    """A policy on the GPU that changes its weights and tells where they are, until it is told to end."""
    policy = causal_lm(Path(folder), role=role_plan(device="cuda:0"))
    mapper, version = WeightMapper(ShardedSource(policy, version=0)), 0
    while pipe.recv():
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter += 0.125
        version += 1
        pipe.send((mapper.publish(version=version), float(sum(p.double().sum() for p in policy.parameters()))))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_another_process_reads_the_weights_on_the_gpu(dtype: str, llama_folder: Path) -> None:
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=learning_process, args=(str(llama_folder), there), daemon=True)
    process.start()
    role = role_plan("reference", device="cuda:0", storage_dtype=dtype, compute_dtype=dtype)
    own, source = causal_lm(llama_folder, role=role), MappedSource()
    receiver = WeightReceiver(own)
    try:
        for version in (1, 2):
            here.send(True)
            assert here.poll(120)
            mapped, total = here.recv()
            assert isinstance(mapped, MappedWeights)
            source.offer(mapped)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            assert receiver.receive(source).version == version
            assert torch.cuda.max_memory_allocated() - before < 2**20
            found = float(sum(parameter.double().sum() for parameter in own.parameters()))
            assert found == pytest.approx(total, rel=1e-6 if dtype == "fp32" else 1e-2)
        del source, receiver
        here.send(False)
        process.join(60)
        assert process.exitcode == 0
    finally:
        process.kill()
