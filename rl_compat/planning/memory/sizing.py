"""The largest sizes with which every phase fits under given levers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rl_compat.planning.memory import activations
from rl_compat.planning.memory.budget import engine_needs_bytes, phase_budgets
from rl_compat.planning.memory.request import Levers, MemoryProblem, Sizes

SMALLEST_CHUNK = 64
LOGITS_FRACTION = 0.1
"of the available memory, for the logits of one chunk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What does not fit even at the smallest sizes."""

    phase: str
    needed_bytes: int
    available_bytes: int


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
