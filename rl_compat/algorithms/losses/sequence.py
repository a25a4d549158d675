"""Policy losses with one ratio per response. Micro-batches hold whole rows, so they do not change the result."""

from __future__ import annotations

import torch

from rl_compat.algorithms.losses.token import clipped_surrogates
from rl_compat.algorithms.losses.types import PolicyLoss, PolicyLossInputs, as_policy_loss, token_terms, weighted
from rl_compat.algorithms.masking import masked_mean
from rl_compat.algorithms.precision import at_least_float32

MAX_LOG_SEQUENCE_RATIO = 10.0
LOG_EPSILON = 1e-10


def gspo_loss(inputs: PolicyLossInputs) -> PolicyLoss:
    """max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high)) (Zheng et al. 2025, "GSPO", eq. 13), [B, T].

    s = exp(sg(mean over the response of logprobs - old_logprobs) + logprobs - sg(logprobs)), with the exponent at most
    10 and sg the stop-gradient: the value is the geometric mean of the response's ratios, the gradient is per token.
    The aggregation of the paper is the mean over tokens, then over responses.
    """
    terms = token_terms(inputs)
    row = masked_mean(terms.difference.detach(), mask=inputs.response_mask, dim=1)
    exponent = row[:, None] + terms.logprobs - terms.logprobs.detach()
    ratio = exponent.clamp(max=MAX_LOG_SEQUENCE_RATIO).exp()
    unclipped, clipped = clipped_surrogates(ratio, terms.advantages, inputs)
    losses = weighted(torch.maximum(unclipped, clipped), inputs)
    return as_policy_loss(losses, inputs, kl=-terms.log_ratio, clipped=clipped > unclipped)


def geo_mean_loss(inputs: PolicyLossInputs) -> PolicyLoss:
    """-mean(A) exp(mean over the response of the clipped log-ratio) (Zhao et al. 2025, "GMPO", eq. 4), [B, T].

    Each log-ratio is clipped to [-clip_low, clip_high] on the side that would reduce the loss. All tokens of a response
    carry its loss, so that the mean over tokens, then over responses is the objective of the paper. verl takes the mean
    over the rows of each micro-batch, which is the same for whole mini-batches without empty responses. The weights of
    a response enter with their geometric mean. Tokens outside the bounds count as clipped if A > 0, and as
    clipped_lower if A < 0.
    """
    terms, mask, numbers = token_terms(inputs), inputs.response_mask, inputs.numbers
    sign, bounded = terms.advantages.sign(), terms.log_ratio.clamp(-numbers.clip_low, numbers.clip_high)
    pessimistic = sign * torch.minimum(sign * terms.log_ratio, sign * bounded)
    exponent = masked_mean(pessimistic, mask=mask, dim=1)
    if inputs.weights is not None:
        exponent = exponent + masked_mean((at_least_float32(inputs.weights) + LOG_EPSILON).log(), mask=mask, dim=1)
    rows = -masked_mean(terms.advantages, mask=mask, dim=1) * exponent.exp()
    losses = rows[:, None].expand(mask.shape).masked_fill(~mask, 0)
    beyond = terms.log_ratio != bounded
    return as_policy_loss(
        losses,
        inputs,
        kl=-terms.log_ratio,
        clipped=beyond & (terms.advantages > 0),
        clipped_lower=beyond & (terms.advantages < 0),
    )
