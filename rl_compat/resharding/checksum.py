"""A checksum of weights that can be summed over their parts, on the device that holds them."""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

from rl_compat.resharding.layout import Box

_CHUNK = {"cpu": 2**16, "cuda": 2**24}
"elements whose terms exist at once: a processor keeps them in its cache, a GPU starts few kernels"
_MODULUS = 2**64
_STEPS = (-0x61C8864680B583EB, -0x40A7B892E31B1A47)
"odd numbers with about as many ones as zeros, as int64"


@torch.no_grad()
def checksum(part: Tensor, *, name: str, shape: tuple[int, ...], box: Box) -> int:
    """The checksum of a part of a weight, from its bits and the place of each element in the whole weight.

    Modulo 2**64, the parts of a weight add up to the checksum of the whole, and so do the weights of a model. A change
    of one element always changes the sum: its factor is odd.
    """
    if part.numel() == 0:
        return 0
    if not box:
        part, shape, box = part.view(1), (1,), ((0, 1),)
    matrix = _bits(part).reshape(-1, part.shape[-1])
    columns = _factors(torch.arange(*box[-1], device=part.device), 0)
    rows = _factors(_places(shape[:-1], box[:-1], part.device).flatten(), zlib.crc32(name.encode()))
    step = max(1, _CHUNK[part.device.type] // matrix.shape[1])
    total = torch.zeros((), dtype=torch.int64, device=part.device)
    for start in range(0, len(matrix), step):
        terms = matrix[start : start + step].to(torch.int64).add_(1).mul_(columns)
        total += (terms.sum(1) * rows[start : start + step]).sum()
    return int(total) % _MODULUS


def _bits(values: Tensor) -> Tensor:
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.contiguous().view(integers[values.dtype.itemsize])


def _places(shape: tuple[int, ...], box: Box, device: torch.device) -> Tensor:
    """The number of each element of a part in the whole tensor."""
    places = torch.zeros((), dtype=torch.int64, device=device)
    for dim, (start, stop) in enumerate(box):
        places = places[..., None] + torch.arange(start, stop, device=device) * math.prod(shape[dim + 1 :])
    return places


def _factors(places: Tensor, salt: int) -> Tensor:
    """An odd number for each place, by multiplication and shifts as in SplitMix64."""
    mixed = (places + (salt + 1)) * _STEPS[0]
    mixed = (mixed ^ (mixed >> 31)) * _STEPS[1]
    return (mixed ^ (mixed >> 29)) | 1
