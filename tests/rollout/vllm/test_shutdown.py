"""The shutdown of vLLM in a process that goes on."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from rl_compat.rollout.vllm.shutdown import Held, stop


class _Engine:
    """What vLLM's engine does to process groups when it ends."""

    def __init__(self) -> None:
        self.own = dist.new_group()
        self.engine_core = SimpleNamespace(shutdown=self._shutdown)

    def collective_rpc(self, function: object, *, kwargs: object) -> None:
        pass

    def _shutdown(self) -> None:
        dist.destroy_process_group(self.own)
        dist.destroy_process_group()


@pytest.mark.parametrize("found_group", [True, False])
def test_the_default_process_group_survives_vllm_if_it_was_there_first(found_group: bool) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Linear(1, 1)
    try:
        engine = _Engine()
        stop(Held(engine=engine, source=weakref.ref(model), found_group=found_group))
        assert dist.is_initialized() is found_group
        if found_group:
            dist.all_reduce(torch.ones(1))
            with pytest.raises(ValueError, match="not registered"):
                dist.get_rank(engine.own)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
