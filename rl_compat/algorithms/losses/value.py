"""The value loss, and the explained variance of the critic."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl_compat.algorithms.masking import at_least_float32, masked_variance


class ValueLoss(NamedTuple):
    """Losses [B, T], 0 outside the mask, and a sum over the mask that adds up over micro-batches."""

    losses: Tensor
    num_clipped: Tensor
    "tokens where the clipped value has the larger error"


def value_loss(
    *, values: Tensor, old_values: Tensor, returns: Tensor, response_mask: Tensor, clip_value: float | None
) -> ValueLoss:
    """Half the squared error of each token's value, all [B, T].

    With clip_value it is the maximum of this and the same error with the value clipped to within clip_value of
    old_values, which limits how far one update moves the critic (as in the PPO of OpenAI baselines).
    """
    outside = ~response_mask
    values, old_values, returns = (at_least_float32(x).masked_fill(outside, 0) for x in (values, old_values, returns))
    errors = (values - returns).square()
    if clip_value is None:
        return ValueLoss(losses=0.5 * errors, num_clipped=errors.new_zeros(()))
    near = torch.clamp(values, old_values - clip_value, old_values + clip_value)
    near_errors = (near - returns).square()
    return ValueLoss(
        losses=0.5 * torch.maximum(errors, near_errors),
        num_clipped=(near_errors > errors).sum().to(errors.dtype),
    )


def explained_variance(*, values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """1 - var(returns - values) / var(returns) over the mask, all [B, T], a scalar. 0 when the returns do not vary."""
    values, returns = at_least_float32(values), at_least_float32(returns)
    variance = masked_variance(returns, mask=mask)
    unexplained = masked_variance(returns - values, mask=mask)
    return torch.where(variance > 0, 1 - unexplained / variance.clamp(min=torch.finfo(variance.dtype).tiny), 0.0)
