"""The search: levers that save memory are pulled one after the other, the cheapest first, with the largest sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from rl_compat.planning.memory import activations
from rl_compat.planning.memory.budget import engine_needs_bytes, host_bytes, phase_budgets
from rl_compat.planning.memory.request import Levels, Levers, MemoryProblem, Sizes
from rl_compat.planning.types import KeptWhole
from rl_compat.units import format_bytes

SMALLEST_CHUNK = 64
LOGITS_FRACTION = 0.1
"of the available memory, for the logits of one chunk"
CHEAP = ("sleep_between", "gradient_checkpointing", "frozen_dtype")
"worth pulling for larger micro-batches; the other levers only when nothing fits without them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What does not fit even at the smallest sizes."""

    phase: str
    needed_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The chosen levers and sizes, and for each pulled lever why the step before it was not enough."""

    levers: Levers
    sizes: Sizes
    because: dict[str, str] = field(default_factory=dict)


LEVERS = (*CHEAP, "num_shards", "shard_frozen", "offload_idle_models", "offload_optimizer")
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
        return _keeping_whole(problem, _released(problem, best))
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


def _keeping_whole(problem: MemoryProblem, found: Solution) -> Solution:
    """The same with as much of sharded models kept whole between micro-batches as there is room for.

    Weights come first: they take less than gradients, and save as many bytes.
    """
    work, sizes = problem.request.workload, found.sizes
    several = work.trains and work.mini_batch_seqs * work.length > sizes.micro_batch_tokens
    kept: tuple[KeptWhole, ...] = ("all", "weights") if several else ("weights",)
    for levers in (replace(found.levers, kept_whole=each) for each in kept if found.levers.num_shards > 1):
        if shortage(problem, levers, sizes) is None:
            return replace(found, levers=levers)
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


def largest_sizes(problem: MemoryProblem, levers: Levers) -> Sizes | Shortage:
    """The largest sizes that fit, raised one after the other: concurrent sequences, prefill, micro-batch."""
    wanted, limits, work = problem.wanted, problem.limits, problem.request.workload
    smallest = _smallest(problem)
    short = shortage(problem, levers, smallest)
    if short is not None:
        return short

    def fits(sizes: Sizes) -> bool:
        return shortage(problem, levers, sizes) is None

    sizes = smallest
    if wanted.max_num_seqs is None:
        most = min(limits.max_num_seqs, wanted.num_sequences)
        sizes = _raise(sizes, most, lambda count: replace(smallest, max_num_seqs=count), fits)
    if wanted.max_prefill_tokens is None:
        rolling, prompt = sizes, work.max_prompt_length
        most = min(limits.max_prefill_tokens // prompt, rolling.max_num_seqs)
        sizes = _raise(rolling, most, lambda count: replace(rolling, max_prefill_tokens=count * prompt), fits)
    if wanted.micro_batch_size is None and wanted.micro_batch_tokens is None:
        filled = sizes
        most = min(limits.max_tokens_per_micro_batch // work.length, wanted.mini_batch_sequences)
        sizes = _raise(filled, most, lambda count: replace(filled, micro_batch_tokens=count * work.length), fits)
    return sizes


def shortage(problem: MemoryProblem, levers: Levers, sizes: Sizes) -> Shortage | None:
    """The phase that exceeds the available memory by most, or None."""
    request, room = problem.request, problem.room
    if room.engine_bytes is not None:
        held = engine_needs_bytes(request, levers, replace(sizes, max_num_seqs=1) if room.sequences_wait else sizes)
        if held > room.engine_bytes:
            return Shortage(phase="rollout engine", needed_bytes=held, available_bytes=room.engine_bytes)
    worst = max(phase_budgets(request, levers, sizes), key=lambda budget: budget.total_bytes)
    if worst.total_bytes <= room.available_bytes:
        return None
    return Shortage(phase=worst.phase, needed_bytes=worst.total_bytes, available_bytes=room.available_bytes)


def _smallest(problem: MemoryProblem) -> Sizes:
    wanted, work = problem.wanted, problem.request.workload
    rows = wanted.micro_batch_size or (2 if work.pairs else 1)
    return Sizes(
        micro_batch_tokens=wanted.micro_batch_tokens or rows * work.length,
        logprob_chunk_tokens=wanted.logprob_chunk_tokens or _chunk_tokens(problem),
        max_num_seqs=wanted.max_num_seqs or 1,
        max_prefill_tokens=wanted.max_prefill_tokens or work.max_prompt_length,
    )


def _chunk_tokens(problem: MemoryProblem) -> int:
    """The largest power of two whose logits stay within their fraction of the memory."""
    one = activations.logits_bytes(problem.request.workload.main_model.vocab_size, tokens=1)
    chunk = problem.limits.max_logprob_chunk_tokens
    while chunk > SMALLEST_CHUNK and chunk * one > problem.room.available_bytes * LOGITS_FRACTION:
        chunk //= 2
    return chunk


def _raise(start: Sizes, most: int, at: Callable[[int], Sizes], fits: Callable[[Sizes], bool]) -> Sizes:
    """The sizes `at` the largest count up to `most` that fits. `start`, the sizes at count 1, fits."""
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(at(middle)):
            low = middle
        else:
            high = middle - 1
    return at(low) if low > 1 else start
