"""A checksum of weights that can be summed over their parts, on the device that holds them."""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

from rl_compat.resharding.layout import Box

_CHUNK = 2**20
"elements whose terms exist at once"
_STEP = 0x9E3779B97F4A7C15
_MODULUS = 2**64


@torch.no_grad()
def checksum(part: Tensor, *, name: str, shape: tuple[int, ...], box: Box) -> int:
    """The checksum of a part of a weight, from its bits and the place of each element in the whole weight.

    Modulo 2**64, the parts of a weight add up to the checksum of the whole, and so do the weights of a model. A change
    of one element always changes the sum.
    """
    if part.numel() == 0:
        return 0
    if not box:
        part, shape, box = part.view(1), (1,), ((0, 1),)
    rows = max(1, _CHUNK // max(1, part[0].numel()))
    total = 0
    for start in range(0, len(part), rows):
        piece = part[start : start + rows]
        first = box[0][0] + start
        places = _places(shape, ((first, first + len(piece)), *box[1:]), part.device)
        factors = places.mul_(2).add_(1).mul_(_signed(_STEP)).add_(2 * zlib.crc32(name.encode()))
        total += int((_bits(piece).to(torch.int64).add_(1) * factors).sum())
    return total % _MODULUS


def _bits(values: Tensor) -> Tensor:
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.contiguous().view(integers[values.dtype.itemsize])


def _places(shape: tuple[int, ...], box: Box, device: torch.device) -> Tensor:
    """The number of each element of a part in the whole weight."""
    places = torch.zeros((), dtype=torch.int64, device=device)
    for dim, (start, stop) in enumerate(box):
        along = torch.arange(start, stop, device=device) * math.prod(shape[dim + 1 :])
        places = places[..., None] + along
    return places


def _signed(number: int) -> int:
    return number - _MODULUS if number >= _MODULUS // 2 else number
