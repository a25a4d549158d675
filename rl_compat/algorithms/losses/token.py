"""Policy losses with one ratio per token or per response; micro-batches of whole rows do not change the result."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_compat.algorithms.losses.types import (
    PolicyLoss,
    PolicyLossInputs,
    TokenTerms,
    as_policy_loss,
    token_terms,
    weighted,
)
from rl_compat.algorithms.masking import at_least_float32, masked_mean


def ppo_clip_loss(inputs: PolicyLossInputs) -> PolicyLoss:
    """max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high)) (Schulman et al. 2017, eq. 7), [B, T].

    ratio = exp(logprobs - old_logprobs) with the exponent clamped to [-20, 20]. Different bounds are the clip-higher of
    DAPO (Yu et al. 2025). Where A < 0, the loss is at most -A clip_dual if clip_dual is given (Ye et al. 2020, eq. 5),
    which clipped_lower counts.
    """
    terms, bound = token_terms(inputs), inputs.numbers.clip_dual
    unclipped, clipped = clipped_surrogates(terms.ratio, terms.advantages, inputs)
    losses, exceeds = torch.maximum(unclipped, clipped), None
    if bound is not None:
        assert bound > 1, f"clip_dual is {bound}, must be above 1"
        exceeds = (terms.advantages < 0) & (losses > -terms.advantages * bound)
        losses = torch.where(exceeds, -terms.advantages * bound, losses)
    return as_policy_loss(
        weighted(losses, inputs), inputs, kl=-terms.log_ratio, clipped=clipped > unclipped, clipped_lower=exceeds
    )


def cispo_loss(inputs: PolicyLossInputs) -> PolicyLoss:
    """-sg(clip(ratio, 1 - clip_low, 1 + clip_high)) A logprobs (MiniMax 2025, "MiniMax-M1", eq. 4), [B, T].

    The clipped ratio has no gradient (sg is the stop-gradient), so that every token has a gradient. Tokens with a ratio
    outside the bounds count as clipped, whatever their advantage.
    """
    terms, numbers = token_terms(inputs), inputs.numbers
    bounded = terms.ratio.clamp(1 - numbers.clip_low, 1 + numbers.clip_high).detach()
    losses = -bounded * terms.advantages * terms.logprobs
    return as_policy_loss(weighted(losses, inputs), inputs, kl=-terms.log_ratio, clipped=terms.ratio != bounded)


def sapo_loss(inputs: PolicyLossInputs) -> PolicyLoss:
    """-A (4 / tau) sigmoid(tau (ratio - 1)) (Gao et al. 2025, "Soft Adaptive Policy Optimization"), [B, T].

    tau is sapo_tau_positive where A > 0 and sapo_tau_negative elsewhere. The gradient decays smoothly as the ratio
    moves away from 1, and nothing is clipped.
    """
    terms, numbers = token_terms(inputs), inputs.numbers
    assert min(numbers.sapo_tau_positive, numbers.sapo_tau_negative) > 0, "the temperatures of SAPO must be above 0"
    rises = terms.advantages > 0
    tau = torch.full_like(terms.ratio, numbers.sapo_tau_negative).masked_fill(rises, numbers.sapo_tau_positive)
    losses = -terms.advantages * torch.sigmoid(tau * (terms.ratio - 1)) * (4 / tau)
    return as_policy_loss(weighted(losses, inputs), inputs, kl=-terms.log_ratio)


def reinforce_loss(inputs: PolicyLossInputs) -> PolicyLoss:
    """-A logprobs (Williams 1992), [B, T].

    It is on-policy. Off-policy tokens are corrected by the importance weights. It is also the loss of GPG (Chu et al.
    2025), which differs in the advantages.
    """
    terms = token_terms(inputs)
    losses = -terms.advantages * terms.logprobs
    return as_policy_loss(weighted(losses, inputs), inputs, kl=-terms.log_ratio)


def dro_loss(inputs: PolicyLossInputs) -> PolicyLoss:
    """-(A logprobs - (dro_beta / 2) (logprobs - old_logprobs)^2), [B, T].

    A quadratic penalty on the distance to the old policy replaces clipping (Richemond et al. 2024, "Offline Regularised
    Reinforcement Learning", with advantages instead of a learned baseline).
    """
    terms, beta = token_terms(inputs), inputs.numbers.dro_beta
    assert beta > 0, f"dro_beta is {beta}, must be above 0"
    losses = -(terms.advantages * terms.logprobs - 0.5 * beta * terms.difference.square())
    return as_policy_loss(weighted(losses, inputs), inputs, kl=-terms.log_ratio)


def dppo_tv_loss(inputs: PolicyLossInputs) -> PolicyLoss:
    """-A sg(min(ratio, clip_dual)) logprobs on kept tokens (Qi et al. 2026, "Rethinking the Trust Region"), [B, T].

    A token is kept while the total variation between the old and the current policy, of this token against all others,
    is within its bound: p - p_old <= clip_high where A > 0, and p_old - p <= clip_low elsewhere. Tokens that are not
    kept count as clipped, kept tokens with a ratio above clip_dual as clipped_lower.
    """
    terms, numbers = token_terms(inputs), inputs.numbers
    moved = (terms.logprobs.exp() - terms.old_logprobs.exp()).detach()
    kept = torch.where(terms.advantages > 0, moved <= numbers.clip_high, moved >= -numbers.clip_low)
    return _within_divergence(inputs, terms, kept)


def dppo_kl_loss(inputs: PolicyLossInputs) -> PolicyLoss:
    """`dppo_tv_loss` with KL(p_old || p) of this token against all others instead of total variation, [B, T].

    p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)) must be at most clip_high where A > 0 and p > p_old,
    and at most clip_low where A <= 0 and p < p_old.
    """
    terms, numbers = token_terms(inputs), inputs.numbers
    probability, old = terms.logprobs.detach().exp(), terms.old_logprobs.exp()
    others = torch.log((1 - old + 1e-8) / (1 - probability + 1e-8))
    divergence = -old * terms.difference.detach() + (1 - old) * others
    kept = torch.where(
        terms.advantages > 0,
        (divergence <= numbers.clip_high) | (probability <= old),
        (divergence <= numbers.clip_low) | (probability >= old),
    )
    return _within_divergence(inputs, terms, kept)


def clipped_surrogates(ratio: Tensor, advantages: Tensor, inputs: PolicyLossInputs) -> tuple[Tensor, Tensor]:
    """-A ratio and -A clip(ratio, 1 - clip_low, 1 + clip_high), both [B, T]."""
    bounded = ratio.clamp(1 - inputs.numbers.clip_low, 1 + inputs.numbers.clip_high)
    return -advantages * ratio, -advantages * bounded


def _within_divergence(inputs: PolicyLossInputs, terms: TokenTerms, kept: Tensor) -> PolicyLoss:
    bound = inputs.numbers.clip_dual
    assert bound is None or bound > 1, f"clip_dual is {bound}, must be above 1"
    truncated = terms.ratio.detach().clamp(max=bound if bound is not None else torch.inf)
    losses = torch.where(kept, -terms.advantages * truncated * terms.logprobs, 0)
    return as_policy_loss(
        weighted(losses, inputs),
        inputs,
        kl=-terms.log_ratio,
        clipped=~kept,
        clipped_lower=kept & (terms.ratio > truncated),
    )


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
