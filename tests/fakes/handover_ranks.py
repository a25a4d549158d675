"""Handovers among gloo ranks in processes of their own, with what each rank found."""

from __future__ import annotations

import itertools
import math
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor import Shard as TorchShard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from fakes.engines import causal_lm, load_settings, random_batch, role_plan
from fakes.gloo import on_gloo_ranks
from rl_compat.distributed.ranks import ProcessGroupRanks, Ranks, TensorRanks
from rl_compat.models.lora import LoraSettings
from rl_compat.planning.types import RolloutPlan
from rl_compat.resharding.layout import Division, Placement, RankMesh, WeightSpec
from rl_compat.resharding.publish import PublishedWeights, StoreSource, WeightPublisher, joined
from rl_compat.resharding.schedule import schedule
from rl_compat.resharding.sharded import ShardedSource
from rl_compat.resharding.source import WeightReceiver
from rl_compat.resharding.store import FileStore, MemoryStore
from rl_compat.resharding.transport import BucketTransport, HeldPart, ProcessGroups
from rl_compat.rollout.build import build_rollout_engine
from rl_compat.rollout.session import RolloutSession, requests_for
from rl_compat.rollout.types import SamplingParams
from rl_compat.rollout.vllm.engine import VllmEngine
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.workers.policy import PolicySettings, PolicyWorker
from rl_compat.workers.rollout import RolloutSettings, RolloutWorker

Case = Callable[[Path], dict[str, Any]]
BUCKET = 2**13
PROMPTS = [[11, 12, 13], [21, 22], [30, 31, 32, 33]]


def sharded(folder: Path, *, shape: Sequence[int] = (), **options: Any) -> Any:
    """The model of a folder divided among all ranks, layer by layer; `shape` are replicas and shards."""
    model = causal_lm(folder, role=role_plan(), **options)
    shape = shape or (dist.get_world_size(),)
    mesh = init_device_mesh("cpu", tuple(shape), mesh_dim_names=("replicas", "shards")[-len(shape) :])
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def own_model(folder: Path, *, dtype: str = "fp32", **options: Any) -> Any:
    """The rollout's own copy, with other weights than those of the folder."""
    model = causal_lm(folder, role=role_plan("reference", storage_dtype=dtype, compute_dtype=dtype), **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    return model


def session(model: nn.Module) -> RolloutSession:
    plan = RolloutPlan(engine="native", compute_dtype="fp32", max_num_seqs=4, max_prefill_tokens=64)
    return build_rollout_engine(model, plan=plan, pad_token_id=0, num_valid_tokens=60)


def tokens(engine: RolloutSession) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    params = SamplingParams(max_new_tokens=6, seed=3)
    responses = engine.generate(PROMPTS, params, group_size=2)
    return [(one.token_ids, one.policy_versions) for one in itertools.chain(*responses)]


def learn(model: nn.Module) -> float:
    """One step of SGD on the same rows on every rank; returns the norm of the gradient."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    ids = torch.tensor([[7, 8, 9, 10]], device=parameters[0].device)
    model(input_ids=ids).logits.square().mean().backward()
    norm = nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def full(model: nn.Module) -> dict[str, Tensor]:
    """Whole copies of all weights."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {name: (w.full_tensor() if isinstance(w, DTensor) else w).clone() for name, w in weights.items()}


def equal(model: nn.Module, weights: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(parameter, weights[name].to(parameter)) for name, parameter in model.named_parameters())


def generate_and_learn(folder: Path, *, shape: Sequence[int] = ()) -> dict[str, Any]:
    """Generate and learn in turn: responses, and those of a fresh copy of the same weights."""
    policy, own, fresh = sharded(folder, shape=shape), own_model(folder), own_model(folder)
    source = ShardedSource(policy, version=0, bucket_bytes=BUCKET)
    engine = session(own)
    addresses: list[int] = []
    found: dict[str, Any] = {"responses": [], "expected": [], "equal": [], "handovers": [], "norms": []}
    for version in range(3):
        found["handovers"].append(engine.load(source))
        found["responses"].append(tokens(engine))
        addresses = addresses or [parameter.data_ptr() for parameter in own.parameters()]
        weights = full(policy)
        fresh.load_state_dict(weights, strict=False)
        reference = session(fresh)
        reference.policy_version = version
        found["expected"].append(tokens(reference))
        found["equal"].append(equal(own, weights))
        found["norms"].append(learn(policy))
        source.changed(version=version + 1)
    parts = [p.to_local().numel() for p in policy.parameters() if isinstance(p, DTensor)]
    found["num_sharded"] = sum(parts)
    found["num_weights"] = sum(p.numel() for p in own.parameters())
    found["same_addresses"] = addresses == [parameter.data_ptr() for parameter in own.parameters()]
    engine.release_weights()
    found["released"] = sum(parameter.nbytes for parameter in own.parameters())
    engine.load(source)
    found["equal"].append(equal(own, full(policy)))
    return found


def in_half_precision(folder: Path) -> dict[str, Any]:
    """Weights are rounded before they move."""
    policy, own = sharded(folder), own_model(folder, dtype="bf16")
    handover = WeightReceiver(own).receive(ShardedSource(policy, version=4, bucket_bytes=BUCKET))
    return {"equal": equal(own, full(policy)), "handover": handover, "dtype": str(own.lm_head.weight.dtype)}


def whole_weights(folder: Path) -> dict[str, Any]:
    """The source as an iterator, also after a forward that left the root whole."""
    policy = sharded(folder)
    with torch.no_grad():
        policy(input_ids=torch.tensor([[7, 8]]))
    source = ShardedSource(policy, version=2, bucket_bytes=BUCKET)
    weights = {weight.name: weight.tensor for weight in source}
    expected = full(policy)
    same = all(torch.equal(tensor, expected[name]) for name, tensor in weights.items())
    streamed: dict[str, bool] = {}

    def load(tensors: Iterator[tuple[str, Tensor]]) -> None:
        streamed.update({name: torch.equal(tensor, expected[name].bfloat16()) for name, tensor in tensors})

    handover = source.stream(load, dtype=torch.bfloat16)
    return {
        "equal": same,
        "names": sorted(weights) == sorted(expected) == sorted(streamed),
        "rounded": all(streamed.values()),
        "peak": handover.peak_bytes,
        "largest": 2 * max(weight.numel() for weight in expected.values()),
        "full": handover.full_bytes,
    }


def adapters(folder: Path) -> dict[str, Any]:
    """The frozen base moves once, and again after the storage was released on one rank."""
    lora = LoraSettings(rank=4, alpha=8.0, dropout=0.0, targets=("q_proj", "down_proj"))
    policy, own = sharded(folder, lora=lora), own_model(folder, lora=lora)
    source, receiver = ShardedSource(policy, version=0, bucket_bytes=BUCKET), WeightReceiver(own)
    found: dict[str, Any] = {"handovers": [], "equal": []}
    for turn in range(4):
        if turn == 3 and dist.get_rank() == 1:
            receiver.release()
        found["handovers"].append(receiver.receive(source))
        found["equal"].append(equal(own, full(policy)))
        learn(policy)
    found["num_adapters"] = sum("lora_" in name for name, _ in own.named_parameters())
    found["num_all"] = sum(1 for _ in own.parameters())
    return found


def published(folder: Path) -> dict[str, Any]:
    """Every rank leaves its share in a folder that all see, and a rollout elsewhere takes all of them."""
    policy, own = sharded(folder), own_model(folder)
    source, receiver = ShardedSource(policy, version=0), WeightReceiver(own)
    store = FileStore(_shared_folder())
    dtypes = dict.fromkeys(source.shapes(), torch.float32)
    publisher, elsewhere = WeightPublisher(source, store, dtypes=dtypes, bucket_bytes=BUCKET), StoreSource(store)
    found: dict[str, Any] = {"handovers": [], "equal": [], "sent": []}
    for version in (1, 2):
        learn(policy)
        shares: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(shares, publisher.publish(version=version))
        elsewhere.offer(joined(shares))
        found["sent"].append([sum(one.num_bytes for one in share.chains[0]) for share in shares])
        found["handovers"].append(receiver.receive(elsewhere))
        found["equal"].append(equal(own, full(policy)))
    found["num_bytes"] = sum(parameter.nbytes for parameter in own.parameters())
    return found


def _shared_folder() -> Path:
    names = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names, src=0)
    assert names[0] is not None
    return Path(names[0])


def workers(folder: Path, ranks: Ranks, *, engine: str = "native", together: int = 1) -> dict[str, Any]:
    """A policy worker and a rollout worker that take turns; the rollout frees its weights while it sleeps.

    `together` processes are one engine.
    """
    model = load_settings(folder, role=role_plan(num_shards=ranks.size))
    optimizer = OptimizerSettings(lr=1e-2)
    policy = PolicyWorker(PolicySettings(model=model, temperature=1.0, num_epochs=1, optimizer=optimizer), ranks)
    plan = RolloutPlan(
        engine=engine,
        compute_dtype="fp32",
        max_num_seqs=4,
        max_prefill_tokens=64,
        max_model_len=32,
        sleep_between=ranks.size > 1,
        tensor_parallel=together,
    )
    settings = RolloutSettings(model=model, plan=plan, pad_token_id=0, num_valid_tokens=60)
    rollout = RolloutWorker(settings, policy.weight_source(), TensorRanks(ranks, together) if together > 1 else ranks)
    found: dict[str, Any] = {"responses": [], "handovers": [], "bytes": [], "losses": []}
    for turn in range(3):
        requests = requests_for(PROMPTS, SamplingParams(max_new_tokens=6, seed=3), group_size=2)
        own = rollout.generate(call=f"own {turn}", requests=requests, rows=[0] * len(requests))
        together = {place: one for part in ranks.gather(own) for place, one in part.items()}
        found["responses"].append({place: (one.token_ids, one.policy_versions) for place, one in together.items()})
        found["handovers"] += rollout.take_handovers()
        found["bytes"].append(sum(parameter.nbytes for parameter in rollout._model.parameters()))
        found["losses"].append(policy.update(batch=random_batch(), seed=turn)["actor/loss"])
    _stop(rollout.session)
    return found


def _stop(session: RolloutSession) -> None:
    """Stop vLLM, whose processes do so at the same time."""
    if isinstance(session, VllmEngine):
        session.stop()


def queue(folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Engines with two slots, the last of which is slow; a prompt comes twice. Two calls have two counters."""
    model = load_settings(folder, role=role_plan())
    policy = PolicyWorker(PolicySettings(model=model, temperature=1.0, num_epochs=1), ranks)
    plan = RolloutPlan(engine="native", compute_dtype="fp32", max_num_seqs=2, max_prefill_tokens=64)
    settings = RolloutSettings(model=model, plan=plan, pad_token_id=0, num_valid_tokens=60)
    rollout = RolloutWorker(settings, policy.weight_source(), ranks)
    rollout.generate(call="short", requests=requests_for([[5]], SamplingParams(max_new_tokens=1, seed=0)), rows=[0])
    advance = rollout.session._advance

    def slowly(*arguments: Any) -> Any:
        time.sleep(0.02)
        return advance(*arguments)

    if ranks.size > 1 and ranks.rank == ranks.size - 1:
        rollout.session._advance = slowly  # type: ignore[method-assign]
    prompts = [*PROMPTS, *([40 + n, 41 + n] for n in range(8)), PROMPTS[0]]
    requests = requests_for(prompts, SamplingParams(max_new_tokens=8, seed=3), group_size=4)
    seen: list[int] = []
    ranks.barrier()
    calls = [rollout.generate(call=name, requests=requests, rows=[0] * 48, on_progress=seen.append) for name in "ab"]
    return {"calls": calls, "progress": seen[-1]}


def one_engine(folder: Path, ranks: Ranks, *, engine: str = "native") -> dict[str, Any]:
    """All processes are one engine, and the last one learns of new weights and announced requests after the others.

    The last one alone is asked to end the third call. With the native engine, each process computes the whole model.
    """
    model = load_settings(folder, role=role_plan())
    optimizer = OptimizerSettings(lr=1e-2)
    policy = PolicyWorker(PolicySettings(model=model, temperature=1.0, num_epochs=1, optimizer=optimizer), ranks)
    size = ranks.num_processes
    store = FileStore(_shared_folder()) if size > 1 else MemoryStore()
    plan = RolloutPlan(
        engine=engine,
        compute_dtype="fp32",
        max_num_seqs=16,
        max_prefill_tokens=64,
        max_model_len=32,
        tensor_parallel=size,
    )
    settings = RolloutSettings(model=model, plan=plan, pad_token_id=0, num_valid_tokens=60, on_update="continue")
    rollout = RolloutWorker(settings, StoreSource(store), TensorRanks(ranks, size) if size > 1 else ranks)
    session, is_last = rollout.session, ranks.process == size - 1
    session._together = rollout._together
    advance, serve, served = session._advance, session.serve, list[Any]()
    requests = requests_for(PROMPTS, SamplingParams(max_new_tokens=6, seed=3), group_size=2)

    def publish() -> PublishedWeights:
        return joined(ranks.gather(policy.publish(store=store, dtypes=rollout.weight_dtypes())))

    def generate(call: str, before_third_step: Callable[[], None]) -> int:
        steps = 0

        def counted(*arguments: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == 3:
                before_third_step()
            return advance(*arguments)

        session._advance = counted  # type: ignore[method-assign]
        return len(rollout.generate(call=call, requests=requests, rows=[0] * len(requests)))

    def kept(*arguments: Any, **named: Any) -> Any:
        served.append(serve(*arguments, **named))
        return served[-1]

    def news() -> None:
        rollout.offer(published=newer)
        rollout.announce(call="announced", requests=requests)

    session.serve = kept  # type: ignore[method-assign]
    rollout.offer(published=publish())
    rollout._catch_up()
    policy.update(batch=random_batch(), seed=1)
    newer = publish()
    late = threading.Timer(0.3, news)
    returned = [
        generate("first", late.start if is_last and size > 1 else news),
        generate("announced", lambda: None),
        generate("ended", rollout.abort if is_last else lambda: None),
    ]
    _stop(session)
    responses = [[(one[place].token_ids, one[place].policy_versions) for place in sorted(one)] for one in served]
    return {"responses": responses, "returned": returned}


def random_layouts(folder: Path) -> dict[str, Any]:
    """Weights of several dtypes between random layouts of some of the ranks, point to point and gathered."""
    del folder
    rank, size = dist.get_rank(), dist.get_world_size()
    groups, wrong, gathered = ProcessGroups(), [], 0
    for seed in range(16):
        rng = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        shapes = [[rng.choice([1, 3, 8, 13]) for _ in range(rng.randrange(1, 4))] for _ in range(6)]
        weights = {f"weight.{n}": torch.randn(shape, generator=generator) for n, shape in enumerate(shapes)}
        dtypes = {name: rng.choice([torch.float32, torch.bfloat16]) for name in weights}
        specs = [WeightSpec(name, tuple(w.shape), dtypes[name].itemsize) for name, w in weights.items()]
        meshes = [_mesh(rng, size), _mesh(rng, size)]
        source, target = (
            {spec.name: Placement(mesh, _divisions(rng, len(spec.shape))) for spec in specs} for mesh in meshes
        )
        buckets = schedule(specs, source, target, bucket_bytes=2048)
        gathered += sum(bool(bucket.groups) for bucket in buckets)
        held: dict[str, HeldPart] = {}
        wanted: dict[str, HeldPart] = {}
        for spec in specs:
            weight = weights[spec.name]
            if rank in meshes[0].ranks:
                box = source[spec.name].box(spec.shape, rank)
                held[spec.name] = HeldPart(_part(weight, box).clone(), box)
            if rank in meshes[1].ranks:
                box = target[spec.name].box(spec.shape, rank)
                wanted[spec.name] = HeldPart(torch.full([b - a for a, b in box], torch.nan), box)
        transport = BucketTransport(buckets, rank=rank, groups=groups, dtypes=dtypes, device=torch.device("cpu"))
        for bucket in buckets:
            transport.carry(bucket, held, wanted)
        for name, part in wanted.items():
            exact = _part(weights[name], part.box)
            rounded = exact.to(dtypes[name]).float()
            if not bool(((part.tensor == exact) | (part.tensor == rounded)).all()):
                wrong.append((seed, name))
    return {"wrong": wrong, "gathered": gathered}


def two_dimensions(folder: Path) -> dict[str, Any]:
    """FSDP over tensor parallelism: the data axis divides what the tensor axis has left."""
    del folder
    torch.manual_seed(0)
    expected = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 6))
    policy = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 6))
    policy.load_state_dict(expected.state_dict())
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(policy, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    for layer in policy:
        fully_shard(layer, mesh=mesh["data"])
    own = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 6))
    WeightReceiver(own).receive(ShardedSource(policy, version=1, bucket_bytes=BUCKET))
    return {"equal": equal(own, dict(expected.named_parameters()))}


def other_dimension(folder: Path) -> dict[str, Any]:
    """A DTensor that is divided along its second dimension, unevenly."""
    del folder
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    weight = torch.randn(4, 7)
    policy, own = nn.Linear(7, 4, bias=False), nn.Linear(7, 4, bias=False)
    policy.weight = nn.Parameter(distribute_tensor(weight, mesh, [TorchShard(1)]))
    WeightReceiver(own).receive(ShardedSource(policy, version=1, bucket_bytes=BUCKET))
    return {"equal": torch.equal(own.weight, weight)}


def _part(weight: Tensor, box: Any) -> Tensor:
    return weight[tuple(slice(start, stop) for start, stop in box)]


def _mesh(rng: random.Random, size: int) -> RankMesh:
    sizes = rng.choice([s for s in itertools.product((1, 2, 3, 4), (1, 2)) if math.prod(s) <= size])
    return RankMesh((("data", sizes[0]), ("tensor", sizes[1])), tuple(rng.sample(range(size), math.prod(sizes))))


def _divisions(rng: random.Random, num_dims: int) -> tuple[Division, ...]:
    axes = [axis for axis in ("tensor", "data") if rng.random() < 0.7]
    return tuple(Division(axis, rng.choice([0, 0, num_dims - 1])) for axis in axes)


CASES: Mapping[str, Case] = {
    "generate and learn": generate_and_learn,
    "half precision": in_half_precision,
    "whole weights": whole_weights,
    "adapters": adapters,
    "published": published,
    "workers": lambda folder: workers(folder, _ranks()),
    "queue": lambda folder: queue(folder, _ranks()),
    "one engine": lambda folder: one_engine(folder, _ranks()),
    "random layouts": random_layouts,
    "other dimension": other_dimension,
}
LARGER_CASES: Mapping[str, Case] = CASES | {
    "two dimensions": two_dimensions,
    "replicas": lambda folder: generate_and_learn(folder, shape=(2, dist.get_world_size() // 2)),
}

VLLM_CASES: Mapping[str, Case] = {
    "workers with vllm": lambda folder: workers(folder, _ranks(), engine="vllm", together=2),
    "one engine of vllm": lambda folder: one_engine(folder, _ranks(), engine="vllm"),
}


@cache
def _ranks() -> ProcessGroupRanks:
    return ProcessGroupRanks()


def handovers_on_ranks(folder: Path, *, num_ranks: int, cases: Sequence[str] = ()) -> list[dict[str, dict[str, Any]]]:
    """Cases, by default all without vLLM, on gloo ranks: what each rank found, by case."""
    cases = cases or tuple(CASES if num_ranks == 2 else LARGER_CASES)
    return on_gloo_ranks(partial(_found, folder, tuple(cases)), num_ranks=num_ranks)


def _found(folder: Path, cases: Sequence[str]) -> dict[str, dict[str, Any]]:
    known = LARGER_CASES | VLLM_CASES
    return {name: known[name](folder) for name in cases}
