"""The inputs and outputs of policy losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rl_compat.algorithms.masking import MAX_LOG_RATIO, at_least_float32


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLossNumbers:
    """The coefficients of the formulas. `LOSS_READS` lists the ones that each loss reads."""

    clip_low: float
    clip_high: float
    clip_dual: float | None
    sapo_tau_positive: float
    sapo_tau_negative: float
    dro_beta: float
    clip_cov_fraction: float
    clip_cov_low: float
    clip_cov_high: float
    kl_cov_fraction: float
    kl_cov_coef: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLossInputs:
    """The tokens of one micro-batch, all [B, T]. Values outside the mask, including NaN, have no effect."""

    logprobs: Tensor
    "under the current policy; the only field with a gradient"
    old_logprobs: Tensor
    advantages: Tensor
    response_mask: Tensor
    "bool"
    numbers: PolicyLossNumbers
    weights: Tensor | None = None
    "importance weights of the tokens; 1 if None"
    selection: Tensor | None = None
    "bool: the rows of this micro-batch in the selection that `select` made from the whole mini-batch"


class PolicyLoss(NamedTuple):
    """Losses [B, T], 0 outside the mask, and sums over the mask that add up over micro-batches."""

    losses: Tensor
    num_clipped: Tensor
    "clipped tokens; divided by all tokens it is `actor/pg_clipfrac`"
    num_clipped_lower: Tensor
    "tokens clipped by the second bound, if any; divided by all tokens it is `actor/pg_clipfrac_lower`"
    sum_kl: Tensor
    "sum of old_logprobs - logprobs; divided by all tokens it is `actor/ppo_kl`"


class TokenTerms(NamedTuple):
    """Terms shared by the formulas, [B, T], at least float32 and 0 outside the mask."""

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    difference: Tensor
    "logprobs - old_logprobs"
    log_ratio: Tensor
    "the difference clamped to [-20, 20], so that its exponential and gradient are finite"
    ratio: Tensor
    "exp(log_ratio); 1 outside the mask"


def token_terms(inputs: PolicyLossInputs) -> TokenTerms:
    """The terms shared by the formulas."""
    outside = ~inputs.response_mask
    logprobs, old_logprobs, advantages = (
        at_least_float32(x).masked_fill(outside, 0) for x in (inputs.logprobs, inputs.old_logprobs, inputs.advantages)
    )
    difference = logprobs - old_logprobs
    log_ratio = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return TokenTerms(logprobs, old_logprobs, advantages, difference, log_ratio, log_ratio.exp())


def weighted(losses: Tensor, inputs: PolicyLossInputs) -> Tensor:
    """Losses [B, T] times the importance weights, if any, and 0 outside the mask."""
    if inputs.weights is not None:
        losses = losses * at_least_float32(inputs.weights).masked_fill(~inputs.response_mask, 0)
    return losses.masked_fill(~inputs.response_mask, 0)


def as_policy_loss(
    losses: Tensor,
    inputs: PolicyLossInputs,
    *,
    kl: Tensor,
    clipped: Tensor | None = None,
    clipped_lower: Tensor | None = None,
) -> PolicyLoss:
    """The losses with the counts of the bool masks clipped and clipped_lower and the sum of kl, inputs all [B, T]."""
    mask = inputs.response_mask

    def count(chosen: Tensor | None) -> Tensor:
        return losses.new_zeros(()) if chosen is None else (chosen & mask).sum().to(losses.dtype)

    sum_kl = torch.where(mask, kl.detach(), 0).sum()
    return PolicyLoss(losses, count(clipped), count(clipped_lower), sum_kl)
