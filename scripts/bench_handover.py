"""Measure the handover of sharded weights to a rollout's own storage, against a full gather and load.

python scripts/bench_handover.py                      # 88 million parameters over two gloo ranks
python scripts/bench_handover.py --dtype bf16         # into a rollout in bf16
python scripts/bench_handover.py --gpu --ranks 4      # over NCCL, one GPU per rank
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

from rl_compat.resharding.sharded import BUCKET_BYTES, ShardedSource
from rl_compat.resharding.source import WeightReceiver

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--layers", type=int, default=9, help="of 7.1 million parameters, next to a vocabulary of 32,000"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="of the rollout; the policy is in fp32")
    parser.add_argument("--bucket-mib", type=int, default=BUCKET_BYTES // 2**20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        mp.spawn(measure, args=(options, scratch), nprocs=options.ranks)


def measure(rank: int, options: argparse.Namespace, scratch: str) -> None:
    """Print the measurements of rank 0."""
    torch.set_num_threads(1)
    if options.gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if options.gpu else "gloo",
        init_method=f"file://{scratch}/store",
        rank=rank,
        world_size=options.ranks,
        timeout=timedelta(minutes=2),
    )
    device = torch.device("cuda" if options.gpu else "cpu")
    policy, own = model(options.layers, device), model(options.layers, device).to(DTYPES[options.dtype])
    mesh = init_device_mesh(device.type, (options.ranks,))
    for layer in policy.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(policy, mesh=mesh)
    source = ShardedSource(policy, version=0, bucket_bytes=options.bucket_mib * 2**20)
    receiver = WeightReceiver(own)
    if rank == 0:
        print(
            f"{sum(p.numel() for p in own.parameters()) / 1e6:.0f}M parameters, {options.ranks} ranks, {options.dtype}"
        )
    for _ in range(options.repeats):
        report(rank, "handover", lambda: receiver.receive(source))
        report(rank, "full gather and load", lambda: load_all(policy, own))
    dist.barrier()
    dist.destroy_process_group()


def model(num_layers: int, device: torch.device) -> LlamaForCausalLM:
    torch.manual_seed(0)
    with device:
        made = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=32_000,
                hidden_size=768,
                intermediate_size=2_048,
                num_hidden_layers=num_layers,
                num_attention_heads=12,
                tie_word_embeddings=True,
            )
        )
    return made.requires_grad_(False)


def load_all(policy: nn.Module, own: nn.Module) -> None:
    weights = {name: w.full_tensor() if isinstance(w, DTensor) else w for name, w in policy.named_parameters()}
    own.load_state_dict(weights, strict=False)


def report(rank: int, name: str, work: Callable[[], object]) -> None:
    """Seconds, and the peak of memory above what was in use before."""
    dist.barrier()
    before = start_peak()
    start = time.perf_counter()
    work()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    extra = peak() - before
    if rank == 0:
        print(f"{name:24} {seconds:7.3f} s   {extra / 2**20:7.0f} MiB", flush=True)


def start_peak() -> int:
    """Forget the peak so far; returns the bytes in use."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else resident("VmHWM")


def resident(field: str) -> int:
    """A field of the kernel's account of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    main()
