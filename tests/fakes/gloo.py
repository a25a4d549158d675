"""A function on several gloo ranks, whose processes are forked from one that has imported torch and the workers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

IMPORTED = ["peft", "rl_compat.workers.setup", "transformers.models.llama.modeling_llama"]


def on_gloo_ranks(function: Callable[[], Any], *, num_ranks: int) -> list[Any]:
    """What the function gives on each rank."""
    mp.get_context("forkserver").set_forkserver_preload(IMPORTED)
    with tempfile.TemporaryDirectory() as scratch:
        mp.start_processes(_rank, args=(function, num_ranks, scratch), nprocs=num_ranks, start_method="forkserver")
        return [torch.load(Path(scratch) / f"{rank}.pt", weights_only=False) for rank in range(num_ranks)]


def _rank(rank: int, function: Callable[[], Any], num_ranks: int, scratch: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{scratch}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=60))
    found = function()
    dist.barrier()
    torch.save(found, Path(scratch) / f"{rank}.pt")
    dist.destroy_process_group()
