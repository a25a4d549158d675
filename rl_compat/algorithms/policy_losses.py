"""The clipped policy loss, and how the losses of tokens become one number."""

from __future__ import annotations

from typing import Literal, NamedTuple, assert_never

import torch
from torch import Tensor

from rl_compat.algorithms.masking import masked_mean, masked_sum
from rl_compat.algorithms.precision import at_least_float32

Aggregation = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]

MAX_LOG_RATIO = 20.0


class PolicyLoss(NamedTuple):
    """Losses [B, T], 0 outside the mask, and sums over the mask that add up over micro-batches."""

    losses: Tensor
    num_clipped: Tensor
    "tokens whose ratio was clipped"
    num_dual_clipped: Tensor
    "tokens of negative advantage whose loss was bounded"
    sum_kl: Tensor
    "of old_logprobs - logprobs"


def ppo_clip_loss(
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    clip_low: float,
    clip_high: float,
    clip_dual: float | None,
) -> PolicyLoss:
    """The clipped surrogate loss of each token, all [B, T] (Schulman et al. 2017, eq. 7).

    max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high)) with ratio = exp(logprobs - old_logprobs), the exponent
    held within 20. Where A < 0 and clip_dual is given the loss is at most -A clip_dual (Ye et al. 2020, eq. 5).
    """
    outside = ~response_mask
    advantages = at_least_float32(advantages).masked_fill(outside, 0)
    difference = at_least_float32(logprobs) - at_least_float32(old_logprobs)
    log_ratio = difference.masked_fill(outside, 0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(unclipped, clipped)
    num_dual_clipped = losses.new_zeros(())
    if clip_dual is not None:
        assert clip_dual > 1, f"clip_dual is {clip_dual}, must be above 1"
        bound = -advantages * clip_dual
        exceeds = (advantages < 0) & (losses > bound)
        num_dual_clipped = exceeds.sum().to(losses.dtype)
        losses = torch.where(exceeds, bound, losses)
    return PolicyLoss(
        losses=losses,
        num_clipped=(clipped > unclipped).sum().to(losses.dtype),
        num_dual_clipped=num_dual_clipped,
        sum_kl=-log_ratio.detach().sum(),
    )


def aggregate(
    losses: Tensor,
    *,
    mask: Tensor,
    mode: Aggregation,
    num_tokens: int,
    num_sequences: int,
    width: int | None = None,
) -> Tensor:
    """Losses [B, T] under the mask [B, T] to a scalar, as this part's share of the whole mini-batch.

    num_tokens and num_sequences (rows with at least one token) count the mask over the whole mini-batch, however it is
    split over micro-batches and ranks, so that the results of the parts add up to the result of the whole.
    `seq-mean-token-sum-norm` divides each sequence's sum by `width`, the largest length there can be (Dr. GRPO).
    Nothing under the mask gives 0 that is still connected to the graph.
    """
    num_tokens, num_sequences = max(num_tokens, 1), max(num_sequences, 1)
    match mode:
        case "token-mean":
            return masked_sum(losses, mask=mask) / num_tokens
        case "token-sum":
            return masked_sum(losses, mask=mask)
        case "seq-mean-token-sum":
            return masked_sum(losses, mask=mask) / num_sequences
        case "seq-mean-token-mean":
            return masked_mean(losses, mask=mask, dim=1).sum() / num_sequences
        case "seq-mean-token-sum-norm":
            assert width is not None, "`seq-mean-token-sum-norm` needs a width"
            return masked_sum(losses, mask=mask) / (num_sequences * width)
        case _:
            assert_never(mode)
