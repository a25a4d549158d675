"""Random numbers by seed, prompt, copy and step alone: what else is generated at the same time does not change them."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def response_keys(prompts: Sequence[Sequence[int]]) -> list[int]:
    """A number below 2**63 for each response of a call, from the ids of its prompt and which copy of it it is.

    `prompts` holds one prompt for each response. The first response to a prompt is its copy 0, wherever it stands.
    """
    copies: Counter[tuple[int, ...]] = Counter()
    digests: dict[tuple[int, ...], bytes] = {}
    keys = []
    for prompt in map(tuple, prompts):
        if prompt not in digests:
            digests[prompt] = blake2b(struct.pack(f"<{len(prompt)}q", *prompt), digest_size=16).digest()
        content = digests[prompt] + struct.pack("<q", copies[prompt])
        keys.append(int.from_bytes(blake2b(content, digest_size=8).digest(), "little") >> 1)
        copies[prompt] += 1
    return keys


def row_uniforms(seed: int, keys: Tensor, steps: Tensor) -> Tensor:
    """Keys and steps [B] int64 to numbers [B] float64 in [0, 1): SplitMix64 (Steele, Lea and Flood 2014), twice."""
    streams = _mix(keys * _GOLDEN + _signed(seed))
    bits = _mix(streams + (steps + 1) * _GOLDEN)
    return _shifted(bits, 11).double() * 2.0**-53


def call_seed(seed: int | None) -> int:
    """The seed of one call; drawn from torch's own generator when None."""
    return int(torch.randint(2**62, (1,))) if seed is None else seed


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shifted(state, 30)) * _FIRST
    state = (state ^ _shifted(state, 27)) * _SECOND
    return state ^ _shifted(state, 31)


def _shifted(state: Tensor, bits: int) -> Tensor:
    """Shifted right as if unsigned: torch's shift of a negative number brings ones in."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    """The 64-bit two's complement of an integer of any size."""
    low = number & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low
