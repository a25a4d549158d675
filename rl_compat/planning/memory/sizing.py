"""The largest sizes with which every phase fits under given levers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rl_compat.planning.memory import activations
from rl_compat.planning.memory.budget import engine_needs_bytes, phase_budgets
from rl_compat.planning.memory.request import Levers, MemoryRequest, Sizes
from rl_compat.planning.profile import Limits

SMALLEST_CHUNK = 64
LOGITS_FRACTION = 0.1
"of the available memory, for the logits of one chunk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Upper limits of useful sizes, and sizes that the user fixed."""

    num_sequences: int
    "maximum concurrent sequences, if they fit"
    mini_batch_sequences: int
    max_num_seqs: int | None = None
    max_prefill_tokens: int | None = None
    micro_batch_size: int | None = None
    micro_batch_tokens: int | None = None
    logprob_chunk_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Available memory."""

    available_bytes: int
    "of the device"
    host_bytes: int
    "of the host, by offload"
    engine_bytes: int | None = None
    "what the rollout engine may hold, where the user set its fraction of the device"
    sequences_wait: bool = False
    "sequences wait for a place in the engine's KV cache: one must fit, not all that the user allows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What does not fit even at the smallest sizes."""

    phase: str
    needed_bytes: int
    available_bytes: int


def largest_sizes(
    request: MemoryRequest, levers: Levers, *, wanted: Wanted, limits: Limits, room: Room
) -> Sizes | Shortage:
    """The largest sizes that fit, raised one after the other: concurrent sequences, prefill, micro-batch."""
    smallest = _smallest(request, wanted, limits, room)
    short = shortage(request, levers, smallest, room)
    if short is not None:
        return short

    def fits(sizes: Sizes) -> bool:
        return shortage(request, levers, sizes, room) is None

    sizes = smallest
    if wanted.max_num_seqs is None:
        most = max(1, min(limits.max_num_seqs, wanted.num_sequences))
        sizes = _raise(sizes, most, lambda count: replace(smallest, max_num_seqs=count), fits)
    if wanted.max_prefill_tokens is None:
        sizes = _raise_prefill(request, sizes, limits, fits)
    if wanted.micro_batch_size is None and wanted.micro_batch_tokens is None:
        base = sizes
        most = max(1, min(limits.max_tokens_per_micro_batch // request.workload.length, wanted.mini_batch_sequences))
        sizes = _raise(
            base, most, lambda count: replace(base, micro_batch_tokens=count * request.workload.length), fits
        )
    return sizes


def shortage(request: MemoryRequest, levers: Levers, sizes: Sizes, room: Room) -> Shortage | None:
    """The phase that exceeds the available memory by most, or None."""
    if room.engine_bytes is not None:
        held = engine_needs_bytes(request, levers, replace(sizes, max_num_seqs=1) if room.sequences_wait else sizes)
        if held > room.engine_bytes:
            return Shortage(phase="rollout engine", needed_bytes=held, available_bytes=room.engine_bytes)
    worst = max(phase_budgets(request, levers, sizes), key=lambda budget: budget.total_bytes)
    if worst.total_bytes <= room.available_bytes:
        return None
    return Shortage(phase=worst.phase, needed_bytes=worst.total_bytes, available_bytes=room.available_bytes)


def _smallest(request: MemoryRequest, wanted: Wanted, limits: Limits, room: Room) -> Sizes:
    rows = wanted.micro_batch_size or (2 if request.workload.pairs else 1)
    tokens = wanted.micro_batch_tokens or rows * request.workload.length
    return Sizes(
        micro_batch_tokens=tokens,
        logprob_chunk_tokens=wanted.logprob_chunk_tokens or _chunk_tokens(request, limits, room),
        max_num_seqs=wanted.max_num_seqs or 1,
        max_prefill_tokens=wanted.max_prefill_tokens or request.workload.max_prompt_length,
    )


def _chunk_tokens(request: MemoryRequest, limits: Limits, room: Room) -> int:
    """The largest power of two whose logits stay within their fraction of the memory."""
    one = activations.logits_bytes(request.workload.main_model.vocab_size, tokens=1)
    chunk = limits.max_logprob_chunk_tokens
    while chunk > SMALLEST_CHUNK and chunk * one > room.available_bytes * LOGITS_FRACTION:
        chunk //= 2
    return chunk


def _raise_prefill(request: MemoryRequest, sizes: Sizes, limits: Limits, fits: Callable[[Sizes], bool]) -> Sizes:
    prompt = request.workload.max_prompt_length
    most = max(1, min(limits.max_prefill_tokens // prompt, sizes.max_num_seqs))
    return _raise(sizes, most, lambda count: replace(sizes, max_prefill_tokens=count * prompt), fits)


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
