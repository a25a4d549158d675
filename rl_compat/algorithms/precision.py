"""The floating-point type of the algorithms, and the range of their exponents."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"log-ratios of probabilities are clamped to plus and minus this before the exponential"


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32, or unchanged if it is float64."""
    return x if x.dtype == torch.float64 else x.float()
