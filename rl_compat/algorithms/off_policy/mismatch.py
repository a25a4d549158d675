"""Metrics of the difference between the current policy and the one that sampled."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_compat.algorithms.masking import masked_mean, masked_sum
from rl_compat.algorithms.off_policy.importance import log_ratio_of, prefixed
from rl_compat.algorithms.precision import MAX_LOG_RATIO


def mismatch_metrics(*, old_logprobs: Tensor, rollout_logprobs: Tensor, response_mask: Tensor) -> dict[str, float]:
    """Metrics of the difference between the current policy (training) and the one that sampled (rollout), all [B, T].

    KL(rollout || training) with k1 and k3; the perplexities exp(-mean log-probability) of responses and the differences
    of their logarithms; and the chi-squared divergence E[ratio^2] - 1 over tokens and over responses.
    """
    mask = response_mask
    if not mask.any():
        return {}
    log_ratio, rows = log_ratio_of(old_logprobs, rollout_logprobs, mask), mask.any(1)
    held = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    summed = masked_sum(log_ratio, mask=mask, dim=1)[rows].clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    training, rollout = (
        -masked_mean(x.detach().double(), mask=mask, dim=1)[rows] for x in (old_logprobs, rollout_logprobs)
    )
    difference = training - rollout
    metrics = {
        "kl": masked_mean(-log_ratio, mask=mask),
        "k3_kl": masked_mean(torch.expm1(held) - held, mask=mask),
        "training_ppl": training.exp().mean(),
        "training_log_ppl": training.mean(),
        "rollout_ppl": rollout.exp().mean(),
        "rollout_log_ppl": rollout.mean(),
        "log_ppl_diff": difference.mean(),
        "log_ppl_abs_diff": difference.abs().mean(),
        "log_ppl_diff_max": difference.max(),
        "log_ppl_diff_min": difference.min(),
        "ppl_ratio": difference.exp().mean(),
        "chi2_token": masked_mean((2 * held).exp(), mask=mask) - 1,
        "chi2_seq": (2 * summed).exp().mean() - 1,
    }
    return prefixed({name: float(value) for name, value in metrics.items()})
