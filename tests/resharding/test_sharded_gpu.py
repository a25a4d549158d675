"""A handover on a GPU: gathered by NCCL, at the addresses that captured graphs read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fakes.engines import causal_lm, role_plan
from fakes.handover_ranks import PROMPTS, equal, full, learn, tokens
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from rl_compat.planning.types import RolloutPlan
from rl_compat.resharding.sharded import ShardedSource
from rl_compat.rollout.native.engine import NativeEngine
from rl_compat.rollout.types import SamplingParams

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("group") / "store"
    torch.cuda.set_device(0)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl",
        init_method=f"file://{store}",
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=60),
        device_id=torch.device("cuda", 0),
    )
    yield
    dist.destroy_process_group()


def policy_on_gpu(folder: Path) -> Any:
    model = causal_lm(folder, role=role_plan(device="cuda:0"))
    mesh = init_device_mesh("cuda", (1,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_graphs_stay_valid_over_handovers(dtype: str, llama_folder: Path) -> None:
    policy = policy_on_gpu(llama_folder)
    plan = role_plan("reference", device="cuda:0", storage_dtype=dtype, compute_dtype=dtype)
    own, fresh = (causal_lm(llama_folder, role=plan) for _ in range(2))
    rollout = RolloutPlan(engine="native", compute_dtype=dtype, max_num_seqs=4, max_prefill_tokens=64, cuda_graphs=True)
    engine = NativeEngine(own, rollout)
    source = ShardedSource(policy, version=0, bucket_bytes=2**13)
    graphs: set[int] = set()
    for version in range(3):
        handover = engine.load(source)
        found = tokens(engine)
        assert engine._graphs is not None
        graphs.add(id(engine._decoder))
        assert len(engine._graphs) > 0
        assert equal(own, full(policy))
        assert (handover.version, handover.num_weights) == (version, len(list(own.parameters())))
        assert handover.seconds >= handover.write_seconds > 0
        fresh.load_state_dict(full(policy), strict=False)
        reference = NativeEngine(fresh, replace(rollout, cuda_graphs=False))
        expected = reference.generate(PROMPTS, SamplingParams(max_new_tokens=6, temperature=0.0))
        greedy = engine.generate(PROMPTS, SamplingParams(max_new_tokens=6, temperature=0.0))
        assert [one.token_ids for (one,) in greedy] == [one.token_ids for (one,) in expected]
        assert {number for _, versions in found for number in versions} == {version}
        learn(policy)
        source.changed(version=version + 1)
    assert len(graphs) == 1
