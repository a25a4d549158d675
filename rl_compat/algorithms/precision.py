"""The floating-point type that the algorithms compute in."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """The same values in float32, or in float64 when they already are."""
    return x if x.dtype == torch.float64 else x.float()
