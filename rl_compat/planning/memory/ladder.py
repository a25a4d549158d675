"""The search: levers that save memory are pulled one after the other, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from rl_compat.planning.memory.budget import host_bytes
from rl_compat.planning.memory.request import Levels, Levers, MemoryProblem, Sizes
from rl_compat.planning.memory.sizing import Shortage, largest_sizes
from rl_compat.units import format_bytes

CHEAP = ("sleep_between", "gradient_checkpointing", "frozen_dtype")
"worth pulling for larger micro-batches; the other levers only when nothing fits without them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The chosen levers and sizes, and for each pulled lever why the step before it was not enough."""

    levers: Levers
    sizes: Sizes
    because: dict[str, str] = field(default_factory=dict)


LEVERS = ("sleep_between", "gradient_checkpointing", "frozen_dtype", "offload_idle_models", "offload_optimizer")
"in the order of cost"


def search(problem: MemoryProblem) -> Solution | Shortage:
    """The first step of the ladder whose sizes are large enough, else the best that fits, else what is short."""
    best: Solution | None = None
    short: Shortage | None = None
    because: dict[str, str] = {}
    why = ""
    for lever, levers in steps(problem.levels):
        if lever:
            because = because | {lever: why}
        if best is not None and lever not in CHEAP:
            break
        outcome = _try(problem, levers)
        if isinstance(outcome, Shortage):
            short, why = outcome, shortage_text(outcome)
            continue
        if best is None or _better(outcome, best.sizes):
            best = Solution(levers=levers, sizes=outcome, because=because)
        if is_enough(problem, outcome):
            break
        why = f"only {outcome.micro_batch_tokens} tokens fit in a micro-batch and {outcome.max_num_seqs} in a rollout"
    if best is not None:
        return _released(problem, best)
    assert short is not None
    return short


def _released(problem: MemoryProblem, found: Solution) -> Solution:
    """The same without the levers that later ones made unnecessary, the costliest first."""
    for name in reversed(LEVERS):
        first = getattr(problem.levels, name)[0]
        if getattr(found.levers, name) == first:
            continue
        levers = replace(found.levers, **{name: first})
        outcome = _try(problem, levers)
        if isinstance(outcome, Shortage) or (_better(found.sizes, outcome) and not is_enough(problem, outcome)):
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


def is_enough(problem: MemoryProblem, sizes: Sizes) -> bool:
    """Whether larger sizes would gain little."""
    wanted, limits, length = problem.wanted, problem.limits, problem.request.workload.length
    whole = wanted.mini_batch_sequences * length
    fixed = wanted.micro_batch_size is not None or wanted.micro_batch_tokens is not None
    tokens = min(limits.enough_tokens_per_micro_batch, whole - length + 1)
    sequences = min(limits.max_num_seqs // 4, wanted.num_sequences)
    return (fixed or sizes.micro_batch_tokens >= tokens) and (
        wanted.max_num_seqs is not None or sizes.max_num_seqs >= sequences
    )


def shortage_text(short: Shortage) -> str:
    return (
        f"`{short.phase}` needs {format_bytes(short.needed_bytes)} "
        f"and {format_bytes(short.available_bytes)} is available"
    )


def _try(problem: MemoryProblem, levers: Levers) -> Sizes | Shortage:
    on_host, available = host_bytes(problem.request, levers), problem.room.host_bytes
    if on_host > available:
        return Shortage(phase="host memory", needed_bytes=on_host, available_bytes=available)
    return largest_sizes(problem, levers)


def _better(sizes: Sizes, best: Sizes) -> bool:
    if sizes.micro_batch_tokens != best.micro_batch_tokens:
        return sizes.micro_batch_tokens > best.micro_batch_tokens
    return sizes.max_num_seqs > best.max_num_seqs
