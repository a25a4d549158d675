"""Random numbers that depend only on the seed, the prompt, its copy and the step, not on the rest of the batch."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def response_keys(requests: Sequence[tuple[Sequence[int], int]]) -> list[int]:
    """A number below 2**63 for each (prompt ids, copy), which depends only on these two."""
    digests: dict[tuple[int, ...], bytes] = {}
    keys = []
    for ids, copy in requests:
        prompt = tuple(ids)
        if prompt not in digests:
            digests[prompt] = blake2b(struct.pack(f"<{len(prompt)}q", *prompt), digest_size=16).digest()
        content = digests[prompt] + struct.pack("<q", copy)
        keys.append(int.from_bytes(blake2b(content, digest_size=8).digest(), "little") >> 1)
    return keys


def uniforms(seeds: Tensor, keys: Tensor, steps: Tensor) -> Tensor:
    """Seeds, keys and steps [B] int64 to numbers [B] float64 in [0, 1): SplitMix64 (Steele, Lea and Flood 2014), twice.

    Pass a seed of any size as `signed64(seed)`.
    """
    streams = _mix(keys * _GOLDEN + seeds)
    bits = _mix(streams + (steps + 1) * _GOLDEN)
    return _shifted(bits, 11).double() * 2.0**-53


def call_seed(seed: int | None) -> int:
    """The seed of one call; drawn from torch's generator when None."""
    return int(torch.randint(2**62, (1,))) if seed is None else seed


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shifted(state, 30)) * _FIRST
    state = (state ^ _shifted(state, 27)) * _SECOND
    return state ^ _shifted(state, 31)


def _shifted(state: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's own is arithmetic."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def signed64(number: int) -> int:
    """The 64-bit two's complement of an integer of any size."""
    low = number & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low
