"""The policy losses by name, and the aggregation of token losses to a scalar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

from torch import Tensor

from rl_compat.algorithms.losses.covariance import clip_cov_loss, clip_cov_selection, kl_cov_loss, kl_cov_selection
from rl_compat.algorithms.losses.token import (
    cispo_loss,
    dppo_kl_loss,
    dppo_tv_loss,
    dro_loss,
    geo_mean_loss,
    gspo_loss,
    ppo_clip_loss,
    reinforce_loss,
    sapo_loss,
)
from rl_compat.algorithms.losses.types import PolicyLoss, PolicyLossInputs
from rl_compat.algorithms.masking import masked_mean, masked_sum
from rl_compat.algorithms.table import Aggregation, PolicyLossName


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLossRule:
    """A policy loss and its default aggregation."""

    loss: Callable[[PolicyLossInputs], PolicyLoss]
    aggregation: Aggregation = "token-mean"
    "the aggregation in its paper"
    select: Callable[[PolicyLossInputs, int], Tensor] | None = None
    "computes `selection` from all tokens of a mini-batch and a seed, if the loss needs it"


PER_SEQUENCE: Aggregation = "seq-mean-token-mean"

POLICY_LOSSES: Mapping[PolicyLossName, PolicyLossRule] = {
    "ppo_clip": PolicyLossRule(loss=ppo_clip_loss),
    "gspo": PolicyLossRule(loss=gspo_loss, aggregation=PER_SEQUENCE),
    "cispo": PolicyLossRule(loss=cispo_loss),
    "sapo": PolicyLossRule(loss=sapo_loss, aggregation=PER_SEQUENCE),
    "gpg": PolicyLossRule(loss=reinforce_loss),
    "clip_cov": PolicyLossRule(loss=clip_cov_loss, select=clip_cov_selection),
    "kl_cov": PolicyLossRule(loss=kl_cov_loss, select=kl_cov_selection),
    "geo_mean": PolicyLossRule(loss=geo_mean_loss, aggregation=PER_SEQUENCE),
    "dro": PolicyLossRule(loss=dro_loss),
    "dppo_tv": PolicyLossRule(loss=dppo_tv_loss),
    "dppo_kl": PolicyLossRule(loss=dppo_kl_loss),
    "reinforce": PolicyLossRule(loss=reinforce_loss),
}


def aggregate(
    losses: Tensor,
    *,
    mask: Tensor,
    mode: Aggregation,
    num_tokens: int,
    num_sequences: int,
    width: int | None = None,
) -> Tensor:
    """Losses [B, T] under the mask [B, T] to a scalar: the contribution of a micro-batch to its mini-batch.

    num_tokens and num_sequences (rows with at least one token) are counted over the whole mini-batch, so that the
    results of all micro-batches and ranks add up to the loss of the mini-batch. `seq-mean-token-sum-norm` divides the
    sum of each sequence by `width`, the maximum length (Dr. GRPO). An empty mask gives 0 that is connected to the
    graph.
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
