"""Estimated time of a step, and the bytes that its devices exchange.

Every sequence counts with its full length, and no transfer overlaps with computing. The time serves to compare plans,
not to predict a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rl_compat.capability.precision import DTYPE_BYTES
from rl_compat.planning.decide import Decided
from rl_compat.planning.memory.activations import FP32_BYTES
from rl_compat.planning.memory.budget import (
    gathered_widths,
    generates_from_copy,
    layer_parameters,
    outer_parameters,
    shards_of,
)
from rl_compat.planning.memory.ladder import Solution
from rl_compat.planning.speed.rates import (
    LinkRate,
    card_rate,
    link_between,
    link_within,
    slower,
)
from rl_compat.planning.types import RoleName, Transfer
from rl_compat.planning.workload import Phase, Workload

LAYER_SECONDS = 60e-6
"of a layer in one decode step, in addition to reading its weights"
PRODUCTS = {"logprobs": 2, "score": 2, "update": 6}
"operations per parameter and token"
SUMS_OF_FORWARD = 2
"of activations over the devices that divide a layer"
SUMS_OF_UPDATE = 4
"of activations over the devices that divide a layer: 2 forward, and 2 of gradients backward"
CHECKPOINTED_PRODUCTS = 8
"of an update that computes every layer twice"

ONCE = ("evaluation",)
"phases outside of the steps"

Solved = tuple[Decided, Solution]


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of one device of a pool in a step."""

    decided: Decided
    found: Solution

    @property
    def workload(self) -> Workload:
        """With rows of one device."""
        return self.decided.workload

    @property
    def sequences(self) -> int:
        return self.workload.batch_size * self.workload.sequences_per_row

    def sequences_of(self, phase: Phase) -> int:
        """The sequences that a phase goes through; those of earlier steps are neither generated nor scored again."""
        once = phase.does == "generate" or phase.role in ("reward", "cost")
        return self.sequences + (0 if once else self.workload.drawn_rows * self.workload.sequences_per_row)

    @property
    def num_mini_batches(self) -> int:
        rows = self.workload.batch_size + self.workload.drawn_rows
        return -(-rows // self.workload.mini_batch_size) * self.workload.passes

    def num_micro_batches(self, sequences: int) -> int:
        return -(-sequences // max(1, self.found.sizes.micro_batch_tokens // self.workload.length))

    def parameters(self, role: RoleName) -> int:
        return layer_parameters(self.workload, role) + outer_parameters(self.workload, role)

    def computed_parameters(self, role: RoleName) -> int:
        """Those that one device multiplies with."""
        layers = layer_parameters(self.workload, role) // self.decided.request.tensor_parallel
        return layers + outer_parameters(self.workload, role)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRate:
    """How fast a device generates, or several that are one engine."""

    decode_seconds: float
    "of one token of all its sequences"
    sequence_seconds: float
    "in addition, for each of them"
    prefill_seconds: float
    "of the longest prompt"


def decode_rate(solved: Solved) -> DecodeRate | None:
    """The rate of a pool that generates; None if that of its card is not known."""
    decided, work = solved[0], _Work(*solved)
    rate = card_rate(decided.hardware, decided.request.rollout_dtype)
    if rate is None:
        return None
    role = _generating_role(work.workload)
    parameters = work.parameters(role) // decided.request.devices_per_engine
    reads = parameters * DTYPE_BYTES[decided.request.rollout_dtype] / rate.memory_bytes_per_second
    return DecodeRate(
        decode_seconds=work.workload.models[role].num_layers * LAYER_SECONDS + reads,
        sequence_seconds=2 * parameters / rate.flops,
        prefill_seconds=2 * parameters * work.workload.max_prompt_length / rate.flops,
    )


def handover_bytes(solved: Solved) -> int:
    """Of the weights that a rollout with its own copy gets."""
    work = _Work(*solved)
    return work.parameters(_generating_role(work.workload)) * DTYPE_BYTES[work.decided.request.rollout_dtype]


def _generating_role(workload: Workload) -> RoleName:
    return next(phase.role for phase in workload.phases if phase.does == "generate")


def phase_seconds(solved: Solved) -> dict[str, float]:
    """Estimated seconds of each phase of a pool without transfers; empty if the rate of the device is not known."""
    decided, found = solved
    work = _Work(decided, found)
    compute = card_rate(decided.hardware, decided.request.compute_dtype)
    generate = decode_rate(solved) if work.workload.generates else None
    if compute is None:
        return {}
    seconds = {}
    for phase in work.workload.phases:
        if phase.name in ONCE:
            continue
        parameters = work.parameters(phase.role)
        if phase.does == "generate":
            if generate is None:
                return {}
            sequences = -(-work.sequences // decided.request.tensor_parallel) * decided.request.devices_per_engine
            batch = min(found.sizes.max_num_seqs, sequences)
            waves = -(-sequences // batch)
            step = generate.decode_seconds + batch * generate.sequence_seconds
            seconds[phase.name] = sequences * generate.prefill_seconds
            seconds[phase.name] += waves * work.workload.max_response_length * step
        else:
            products = PRODUCTS[phase.does]
            if phase.does == "update":
                products = CHECKPOINTED_PRODUCTS if found.levers.gradient_checkpointing else products
                products *= work.workload.passes
            parameters = work.computed_parameters(phase.role)
            seconds[phase.name] = (
                products * parameters * work.sequences_of(phase) * work.workload.length / compute.flops
            )
    return seconds


def transfers(solved: Mapping[str, Solved], name: str, network: LinkRate) -> tuple[Transfer, ...]:
    """What each device of the pool `name` exchanges in a step; nothing in a pool of one device with its own weights."""
    work = _Work(*solved[name])
    phases = [phase for phase in work.workload.phases if phase.name not in ONCE]
    made = [transfer for phase in phases for transfer in _of_phase(work, phase, network)]
    copies = _handover(solved, name, network)
    return tuple(item for item in (*made, *copies) if item.num_bytes)


def _of_phase(work: _Work, phase: Phase, network: LinkRate) -> Iterator[Transfer]:
    """The sum of gradients, or the gathers of sharded weights with the parts of gradients."""
    decided, levers, role = work.decided, work.found.levers, phase.role
    ranks, shards = decided.num_ranks, shards_of(work.workload, levers, role)
    engine = decided.request.devices_per_engine
    if phase.does == "generate" and engine > 1:
        shape, tokens = work.workload.models[role], work.sequences_of(phase) * engine * work.workload.length
        width = DTYPE_BYTES[decided.request.rollout_dtype]
        numbers = SUMS_OF_FORWARD * shape.num_layers * shape.hidden_size * tokens
        yield _transfer(
            phase.name, "activations", 2 * numbers * width * (engine - 1) // engine, link_within(decided.hardware)
        )
    if ranks == 1 or phase.does == "generate":
        return
    trained = work.workload.trainable_parameters(role) if phase.does == "update" else 0
    inside = link_within(decided.hardware) if decided.num_devices > 1 else network
    across = inside if decided.requests.plan.num_nodes == 1 else slower(inside, network)
    if shards == 1:
        sums = work.num_mini_batches if trained else 0
        yield _transfer(phase.name, "gradients", sums * 2 * trained * FP32_BYTES * (ranks - 1) // ranks, across)
        return
    link = inside if shards <= decided.num_devices else across
    layers, ends = layer_parameters(work.workload, role), outer_parameters(work.workload, role)
    width, kept = gathered_widths(decided.request, levers, role)
    together = decided.request.tensor_parallel
    part, of_layers = (shards - 1) / shards, (shards // together - 1) / shards
    if together > 1:
        sums = SUMS_OF_FORWARD if not trained else SUMS_OF_UPDATE + (2 if levers.gradient_checkpointing else 0)
        shape, passes = work.workload.models[role], work.workload.passes if trained else 1
        numbers = sums * shape.num_layers * shape.hidden_size * work.sequences_of(phase) * work.workload.length * passes
        yield _transfer(phase.name, "activations", 2 * numbers * FP32_BYTES * (together - 1) // together, inside)
    if not trained:
        gathers = work.num_micro_batches(work.sequences_of(phase)) if levers.kept_whole == "none" else 1
        yield _transfer(phase.name, "weights", int(gathers * (of_layers * layers * width + part * ends * kept)), link)
        return
    rows = work.workload.mini_batch_size * work.workload.sequences_per_row
    updates = work.num_mini_batches
    micro_batches = updates * work.num_micro_batches(rows)
    gathers = micro_batches if levers.kept_whole == "none" else updates
    gathered = (2 if levers.kept_whole == "none" else 1) * of_layers * layers * width + part * ends * kept
    inner = trained * layers // (layers + ends)
    reduced = of_layers * inner + part * (trained - inner)
    yield _transfer(phase.name, "weights", int(gathers * gathered), link)
    exchanges = updates if levers.kept_whole == "all" else micro_batches
    yield _transfer(phase.name, "gradients", int(exchanges * reduced * FP32_BYTES), link)
    replicas = ranks // shards
    summed = 2 * trained // shards * FP32_BYTES * (replicas - 1) // replicas
    yield _transfer(phase.name, "sums of replicas", updates * summed, across)


def _handover(solved: Mapping[str, Solved], name: str, network: LinkRate) -> Iterator[Transfer]:
    """The weights that the rollout of a pool gets: from its own shards, or from the pool of the actor."""
    decided, found = solved[name]
    if not decided.workload.generates:
        return
    role, copied = _generating_role(decided.workload), handover_bytes((decided, found))
    shards = shards_of(decided.workload, found.levers, "actor")
    if role == "rollout":
        home = next(other for other, _ in solved.values() if "actor" in other.workload.models)
        one_each = decided.requests.plan.num_nodes == home.requests.plan.num_nodes == 1
        same = one_each and decided.hardware.host is home.hardware.host
        yield _transfer(
            "rollout", "handover", copied, link_between(home.hardware, decided.hardware) if same else network
        )
    elif shards > 1 and (generates_from_copy(decided.request, found.levers) or decided.request.engine == "vllm"):
        inside = shards <= decided.num_devices
        yield _transfer(
            "rollout", "handover", copied * (shards - 1) // shards, link_within(decided.hardware) if inside else network
        )


def _transfer(phase: str, name: str, num_bytes: int, link: LinkRate) -> Transfer:
    return Transfer(phase=phase, name=name, num_bytes=num_bytes, seconds=link.seconds(num_bytes), link=str(link))


def step_seconds(solved: Mapping[str, Solved], network: LinkRate) -> float | None:
    """Estimated seconds of a step, in which pools score and update at the same time; None if a rate is unknown."""
    stages: dict[str, list[float]] = {}
    for name, pool in solved.items():
        computing, moving = phase_seconds(pool), transfers(solved, name, network)
        if not computing or any(transfer.seconds is None for transfer in moving):
            return None
        own = dict.fromkeys(("generate", "score", "update"), 0.0)
        for phase, seconds in [*computing.items(), *((item.phase, item.seconds or 0.0) for item in moving)]:
            own["generate" if phase == "rollout" else "update" if phase.endswith("_update") else "score"] += seconds
        for stage, seconds in own.items():
            stages.setdefault(stage, []).append(seconds)
    return sum(max(seconds) for seconds in stages.values())
