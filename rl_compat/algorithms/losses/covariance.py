"""Policy losses that restrict the few tokens which reduce the entropy of the policy most (Cui et al. 2025).

These are the tokens with a large covariance term (A - mean A) (logprobs - mean logprobs). They are selected over a
whole mini-batch, before it is split into micro-batches, and passed to the loss as `selection`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_compat.algorithms.losses.token import clipped_surrogates
from rl_compat.algorithms.losses.types import (
    PolicyLoss,
    PolicyLossInputs,
    TokenTerms,
    as_policy_loss,
    token_terms,
    weighted,
)
from rl_compat.algorithms.masking import masked_mean


def clip_cov_loss(inputs: PolicyLossInputs) -> PolicyLoss:
    """`ppo_clip_loss` without dual clipping, and 0 on the selected tokens ("Clip-Cov", eq. 11), [B, T].

    Only the selected tokens count as clipped.
    """
    terms = token_terms(inputs)
    losses = torch.maximum(*clipped_surrogates(terms.ratio, terms.advantages, inputs))
    chosen = _selection(inputs)
    return as_policy_loss(weighted(losses.masked_fill(chosen, 0), inputs), inputs, kl=-terms.log_ratio, clipped=chosen)


def kl_cov_loss(inputs: PolicyLossInputs) -> PolicyLoss:
    """-A ratio, plus kl_cov_coef |logprobs - old_logprobs| on the selected tokens ("KL-Cov", eq. 13), [B, T].

    Nothing is clipped. sum_kl is the sum of |logprobs - old_logprobs|, which verl logs for this loss.
    """
    terms = token_terms(inputs)
    distance = terms.difference.abs()
    penalty = torch.where(_selection(inputs), inputs.numbers.kl_cov_coef * distance, 0)
    return as_policy_loss(weighted(penalty - terms.advantages * terms.ratio, inputs), inputs, kl=distance)


def clip_cov_selection(inputs: PolicyLossInputs, seed: int) -> Tensor:
    """The tokens of a whole mini-batch that `clip_cov_loss` excludes, [B, T] bool.

    They are sampled from the tokens with a covariance term between clip_cov_low and clip_cov_high that are not clipped:
    clip_cov_fraction of all tokens, at least one, as far as there are candidates. The sample depends only on the seed
    (verl uses the global generator).
    """
    terms, numbers, mask = token_terms(inputs), inputs.numbers, inputs.response_mask
    unclipped, clipped = clipped_surrogates(terms.ratio, terms.advantages, inputs)
    covariance = _covariance(terms, mask)
    between = (covariance > numbers.clip_cov_low) & (covariance < numbers.clip_cov_high)
    candidates = (between & mask & ~(clipped > unclipped)).flatten().nonzero().flatten()
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(len(candidates), generator=generator)[: _count(mask, numbers.clip_cov_fraction)]
    return _marked(mask, candidates[drawn.to(candidates.device)])


def kl_cov_selection(inputs: PolicyLossInputs, seed: int = 0) -> Tensor:
    """The tokens of a whole mini-batch that `kl_cov_loss` penalizes, [B, T] bool.

    They are the tokens with the largest covariance term: kl_cov_fraction of all tokens, at least one. The seed is
    unused and gives all selections the same signature.
    """
    terms, mask = token_terms(inputs), inputs.response_mask
    covariance = _covariance(terms, mask).masked_fill(~mask, -torch.inf).flatten()
    count = min(_count(mask, inputs.numbers.kl_cov_fraction), int(mask.sum()))
    return _marked(mask, covariance.topk(count).indices)


def _covariance(terms: TokenTerms, mask: Tensor) -> Tensor:
    advantages, logprobs = terms.advantages.double(), terms.logprobs.detach().double()
    return (advantages - masked_mean(advantages, mask=mask)) * (logprobs - masked_mean(logprobs, mask=mask))


def _count(mask: Tensor, fraction: float) -> int:
    assert fraction > 0, f"the fraction of tokens is {fraction}, must be above 0"
    return max(1, int(fraction * int(mask.sum())))


def _marked(mask: Tensor, positions: Tensor) -> Tensor:
    chosen = torch.zeros_like(mask).flatten()
    chosen[positions] = True
    return chosen.view(mask.shape)


def _selection(inputs: PolicyLossInputs) -> Tensor:
    assert inputs.selection is not None, "this loss needs a `selection` from the whole mini-batch"
    return inputs.selection & inputs.response_mask
