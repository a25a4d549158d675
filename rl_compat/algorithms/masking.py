"""Masked sums, means and whitening, in at least float32. Values outside the mask, including NaN, have no effect."""

from __future__ import annotations

import torch
from torch import Tensor

WHITENING_EPSILON = 1e-8


def length_mask(lengths: Tensor, width: int) -> Tensor:
    """Lengths [B] to a mask [B, width] that is True in the first `lengths[i]` columns of row i."""
    return torch.arange(width, device=lengths.device)[None, :] < lengths[:, None]


def masked_sum(x: Tensor, *, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum of x [...] where mask [...] is True, over one dimension or all. An empty sum is 0 with gradient 0."""
    kept = at_least_float32(x).masked_fill(~mask, 0)
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(x: Tensor, *, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of x [...] where mask [...] is True, over one dimension or all. An empty mean is 0."""
    count = mask.sum() if dim is None else mask.sum(dim)
    return masked_sum(x, mask=mask, dim=dim) / count.clamp(min=1)


def masked_variance(x: Tensor, *, mask: Tensor) -> Tensor:
    """Sample variance (n - 1) of x [...] where mask [...] is True, a scalar. 0 for fewer than two values."""
    deviation = at_least_float32(x) - masked_mean(x, mask=mask)
    return masked_sum(deviation.square(), mask=mask) / (mask.sum() - 1).clamp(min=1)


def whiten(x: Tensor, *, mask: Tensor) -> Tensor:
    """x [...] scaled to zero mean and unit variance over the mask [...]; 0 outside the mask.

    (x - mean) / sqrt(variance + 1e-8) with the sample variance. Statistics are computed in float64, so that equal
    values, and a single one, become exactly 0.
    """
    exact = x.double()
    deviation = exact - masked_mean(exact, mask=mask)
    whitened = deviation * torch.rsqrt(masked_variance(exact, mask=mask) + WHITENING_EPSILON)
    return whitened.masked_fill(~mask, 0).to(at_least_float32(x).dtype)


MAX_LOG_RATIO = 20.0
"log-ratios of probabilities are clamped to plus and minus this before the exponential"


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32, or unchanged if it is float64."""
    return x if x.dtype == torch.float64 else x.float()
