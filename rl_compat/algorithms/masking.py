"""Masked sums, means and whitening. Values outside the mask, including NaN, have no effect."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_compat.algorithms.precision import at_least_float32

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


def whiten(x: Tensor, *, mask: Tensor, shift_mean: bool = True) -> Tensor:
    """x [...] scaled to unit variance and, with shift_mean, zero mean over the mask [...]; 0 outside the mask.

    (x - mean) / sqrt(variance + 1e-8) with the sample variance. Statistics are computed in float64, so that equal
    values become exactly 0. A single value becomes 0, or stays unchanged without shift_mean.
    """
    exact = x.double()
    mean = masked_mean(exact, mask=mask)
    whitened = (exact - mean) * torch.rsqrt(masked_variance(exact, mask=mask) + WHITENING_EPSILON)
    if not shift_mean:
        whitened = whitened + mean
    return whitened.masked_fill(~mask, 0).to(at_least_float32(x).dtype)
