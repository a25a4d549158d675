"""Measure the handover of sharded weights to a rollout, against a full gather and load.

python scripts/bench_handover.py                      # 88 million parameters over two gloo ranks
python scripts/bench_handover.py --dtype bf16         # into a rollout in bf16
python scripts/bench_handover.py --gpu --ranks 4      # over NCCL, one GPU per rank

On GPUs also into vLLM, if it is installed, and between two processes on the first GPU. On one H200:

python scripts/bench_handover.py --gpu --ranks 1 --dtype bf16 --width 4096 --layers 32
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

from rl_compat.planning.types import RolloutPlan
from rl_compat.resharding.handover import Handover
from rl_compat.resharding.mapped import MappedSource, WeightMapper
from rl_compat.resharding.sharded import BUCKET_BYTES, ShardedSource
from rl_compat.resharding.source import WeightReceiver

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=9, help="next to a vocabulary of 32,000")
    parser.add_argument("--width", type=int, default=768, help="a layer has about 12 times its square parameters")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="of the rollout; the policy is in fp32")
    parser.add_argument("--bucket-mib", type=int, default=BUCKET_BYTES // 2**20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        mp.spawn(measure, args=(options, scratch), nprocs=options.ranks)
    if options.gpu:
        measure_processes(options)


def measure(rank: int, options: argparse.Namespace, scratch: str) -> None:
    """Print the measurements of rank 0."""
    if options.gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if options.gpu else "gloo",
        init_method=f"file://{scratch}/store",
        rank=rank,
        world_size=options.ranks,
        timeout=timedelta(minutes=2),
    )
    device = torch.device("cuda" if options.gpu else "cpu")
    policy, own = model(options, device), model(options, device).to(DTYPES[options.dtype])
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
    if options.gpu and importlib.util.find_spec("vllm") is not None:
        measure_vllm(rank, options, policy, own, source)
    dist.barrier()
    dist.destroy_process_group()


def measure_vllm(
    rank: int, options: argparse.Namespace, policy: nn.Module, own: nn.Module, source: ShardedSource
) -> None:
    from rl_compat.rollout.vllm.engine import VllmEngine
    from rl_compat.rollout.vllm.weights import load_weights

    plan = RolloutPlan(
        engine="vllm", compute_dtype=options.dtype, max_num_seqs=8, max_prefill_tokens=512, max_model_len=256
    )
    engine = VllmEngine(copy.deepcopy(own).cpu(), plan, device=f"cuda:{rank}")

    def load_whole() -> None:
        load_weights(engine._engine, iter(gathered(policy).items()), in_place=engine._in_place)

    for _ in range(options.repeats):
        report(rank, "handover to vLLM", lambda: engine.load(source))
        report(rank, "full gather, into vLLM", load_whole)
    engine.stop()


def measure_processes(options: argparse.Namespace) -> None:
    """A policy and a rollout in two processes on the first GPU."""
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=learn, args=(options, there), daemon=True)
    process.start()
    device = torch.device("cuda:0")
    own, source = model(options, device).to(DTYPES[options.dtype]), MappedSource()
    receiver = WeightReceiver(own)

    def over_ipc() -> Handover:
        here.send("map")
        source.offer(here.recv())
        return receiver.receive(source)

    def over_host() -> None:
        here.send("copy")
        own.load_state_dict(here.recv(), strict=False)

    over_ipc()
    for _ in range(options.repeats):
        report(0, "CUDA IPC", over_ipc)
        report(0, "through host memory", over_host)
    here.send("end")
    process.join()


def learn(options: argparse.Namespace, pipe: Connection) -> None:
    """The process of the policy: tells where its weights are, or sends copies."""
    policy = model(options, torch.device("cuda:0"))
    mapper = WeightMapper(ShardedSource(policy, version=0))
    while (wanted := pipe.recv()) != "end":
        pipe.send(mapper.publish(version=0) if wanted == "map" else {n: p.cpu() for n, p in policy.named_parameters()})


def model(options: argparse.Namespace, device: torch.device) -> LlamaForCausalLM:
    torch.manual_seed(0)
    with device:
        made = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=32_000,
                hidden_size=options.width,
                intermediate_size=options.width * 8 // 3,
                num_hidden_layers=options.layers,
                num_attention_heads=options.width // 64,
                tie_word_embeddings=True,
            )
        )
    return made.requires_grad_(False)


def load_all(policy: nn.Module, own: nn.Module) -> None:
    own.load_state_dict(gathered(policy), strict=False)


def gathered(policy: nn.Module) -> dict[str, torch.Tensor]:
    return {name: w.full_tensor() if isinstance(w, DTensor) else w for name, w in policy.named_parameters()}


def report(rank: int, name: str, work: Callable[[], object]) -> None:
    """Seconds, the peak of memory above what was in use before, and the bytes that were received and written."""
    if dist.is_initialized():
        dist.barrier()
    before = start_peak()
    start = time.perf_counter()
    found = work()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    extra = peak() - before
    if rank == 0:
        moved = (
            f"   {found.received_bytes:,} received, {found.written_bytes:,} written"
            if isinstance(found, Handover)
            else ""
        )
        print(f"{name:24} {seconds:7.3f} s   {extra / 2**20:7.0f} MiB{moved}", flush=True)


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
