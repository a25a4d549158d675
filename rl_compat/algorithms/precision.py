"""The floating-point type of the algorithms."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32, or unchanged if it is float64."""
    return x if x.dtype == torch.float64 else x.float()
