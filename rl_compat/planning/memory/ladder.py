"""The search: levers that save memory are pulled one after the other, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from rl_compat.planning.memory.budget import host_bytes
from rl_compat.planning.memory.request import Levers, MemoryRequest, Sizes
from rl_compat.planning.memory.sizing import Room, Shortage, Wanted, largest_sizes
from rl_compat.planning.profile import Limits
from rl_compat.planning.types import DType
from rl_compat.units import format_bytes

CHEAP = ("sleep_between", "gradient_checkpointing", "frozen_dtype")
"worth pulling for larger micro-batches; the other levers only when nothing fits without them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The values each lever may take, from no saving to most; one value where the user fixed it."""

    sleep_between: tuple[bool, ...] = (False, True)
    gradient_checkpointing: tuple[bool, ...] = (False, True)
    frozen_dtype: tuple[DType, ...] = ("fp32",)
    offload_idle: tuple[bool, ...] = (False, True)
    offload_optimizer: tuple[bool, ...] = (False, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The chosen levers and sizes, and for each pulled lever why the step before it was not enough."""

    levers: Levers
    sizes: Sizes
    because: dict[str, str] = field(default_factory=dict)


LEVERS = ("sleep_between", "gradient_checkpointing", "frozen_dtype", "offload_idle", "offload_optimizer")
"in the order of cost"


def search(
    request: MemoryRequest, levels: Levels, *, wanted: Wanted, limits: Limits, room: Room
) -> Solution | Shortage:
    """The first step of the ladder whose sizes are large enough, else the best that fits, else what is short."""
    best: Solution | None = None
    short: Shortage | None = None
    because: dict[str, str] = {}
    why = ""
    for lever, levers in steps(levels):
        if lever:
            because = because | {lever: why}
        if best is not None and lever not in CHEAP:
            break
        outcome = _try(request, levers, wanted, limits, room)
        if isinstance(outcome, Shortage):
            short, why = outcome, shortage_text(outcome)
            continue
        if best is None or _better(outcome, best.sizes):
            best = Solution(levers=levers, sizes=outcome, because=because)
        if is_enough(request, outcome, wanted, limits):
            break
        why = f"only {outcome.micro_batch_tokens} tokens fit in a micro-batch and {outcome.max_num_seqs} in a rollout"
    if best is not None:
        return _released(request, best, levels, wanted, limits, room)
    assert short is not None
    return short


def _released(
    request: MemoryRequest, found: Solution, levels: Levels, wanted: Wanted, limits: Limits, room: Room
) -> Solution:
    """The same without the levers that later ones made unnecessary, the costliest first."""
    for name in reversed(LEVERS):
        first = getattr(levels, name)[0]
        if getattr(found.levers, name) == first:
            continue
        levers = replace(found.levers, **{name: first})
        outcome = _try(request, levers, wanted, limits, room)
        if isinstance(outcome, Shortage) or (
            _better(found.sizes, outcome) and not is_enough(request, outcome, wanted, limits)
        ):
            continue
        because = {key: why for key, why in found.because.items() if key != name}
        found = Solution(levers=levers, sizes=outcome, because=because)
    return found


def steps(levels: Levels) -> Iterator[tuple[str, Levers]]:
    """The lever pulled last (empty at first) and the state of all levers, from no saving to most."""
    current = Levers(**{name: getattr(levels, name)[0] for name in LEVERS})
    yield "", current
    for name in LEVERS:
        for value in getattr(levels, name)[1:]:
            current = replace(current, **{name: value})
            yield name, current


def is_enough(request: MemoryRequest, sizes: Sizes, wanted: Wanted, limits: Limits) -> bool:
    """Whether larger sizes would gain little."""
    whole = wanted.mini_batch_sequences * request.workload.length
    tokens = min(limits.enough_tokens_per_micro_batch, whole)
    fixed = wanted.micro_batch_size is not None or wanted.micro_batch_tokens is not None
    sequences = min(limits.max_num_seqs // 4, wanted.num_sequences)
    enough_tokens = (
        fixed or sizes.micro_batch_tokens >= tokens or sizes.micro_batch_tokens + request.workload.length > whole
    )
    return enough_tokens and (wanted.max_num_seqs is not None or sizes.max_num_seqs >= sequences)


def shortage_text(short: Shortage) -> str:
    return (
        f"`{short.phase}` needs {format_bytes(short.needed_bytes)} "
        f"and {format_bytes(short.available_bytes)} is available"
    )


def _try(request: MemoryRequest, levers: Levers, wanted: Wanted, limits: Limits, room: Room) -> Sizes | Shortage:
    on_host = host_bytes(request, levers)
    if on_host > room.host_bytes:
        return Shortage(phase="host memory", needed_bytes=on_host, available_bytes=room.host_bytes)
    return largest_sizes(request, levers, wanted=wanted, limits=limits, room=room)


def _better(sizes: Sizes, best: Sizes) -> bool:
    if sizes.micro_batch_tokens != best.micro_batch_tokens:
        return sizes.micro_batch_tokens > best.micro_batch_tokens
    return sizes.max_num_seqs > best.max_num_seqs
