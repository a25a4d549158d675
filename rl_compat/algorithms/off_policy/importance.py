"""Importance weights: the ratio of the current policy to the one that sampled.

The policy that sampled is an older version of the current one, or the same weights in an engine that rounds
differently. Statistics are over the whole batch, before it is split. Nothing here has a gradient. Metrics have verl's
names. They exclude responses without tokens, and a batch without tokens has none.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rl_compat.algorithms.masking import MAX_LOG_RATIO, at_least_float32, masked_mean, masked_sum

PREFIX = "rollout_corr/"


class Importance(NamedTuple):
    """Weights [B, T], 0 outside the mask, and metrics."""

    weights: Tensor
    metrics: dict[str, float]


def importance_weights(
    *,
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    response_mask: Tensor,
    level: Literal["token", "sequence"],
    truncate: float | None = None,
    band: tuple[float, float] | None = None,
    normalize: bool = False,
) -> Importance:
    """The importance weights of the current policy over the one that sampled, all [B, T].

    exp(old_logprobs - rollout_logprobs) per token, or the product of the ratios of a response on all of its tokens,
    with the exponent clamped to [-20, 20]. Weights are truncated at `truncate` (Ionides 2008; Yao et al. 2025, "TIS"),
    or set to 0 outside `band` (Ring team 2025, "IcePop"). With `normalize` they are then divided by their mean over the
    tokens or responses of the batch.
    """
    assert truncate is None or band is None, "`truncate` and `band` exclude each other"
    mask = response_mask
    log_ratio = log_ratio_of(old_logprobs, rollout_logprobs, mask)
    if level == "sequence":
        log_ratio = masked_sum(log_ratio, mask=mask, dim=1)[:, None].expand(mask.shape)
    raw = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().masked_fill(~mask, 0)
    low, high = _bounds(truncate, band)
    weights = raw if truncate is None else raw.clamp(max=truncate)
    if band is not None:
        weights = torch.where((raw >= low) & (raw <= high), raw, 0)
    metrics = _weight_metrics(weights, raw, log_ratio, mask, level, low, high) if mask.any() else {}
    if mask.any() and band is not None:
        metrics["rollout_is_oob_ratio"] = float(masked_mean((raw < low) | (raw > high), mask=mask))
    if mask.any() and normalize:
        per_response = masked_mean(weights, mask=mask, dim=1)[mask.any(1)].mean()
        mean = float(masked_mean(weights, mask=mask) if level == "token" else per_response)
        factor = mean if mean > 1e-8 else 1.0
        weights, metrics["rollout_is_batch_norm_factor"] = weights / factor, factor
    return Importance(weights.to(at_least_float32(old_logprobs).dtype), prefixed(metrics))


def log_ratio_of(old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor) -> Tensor:
    """old_logprobs - rollout_logprobs in float64, [B, T], 0 outside the mask."""
    return (old_logprobs.detach().double() - rollout_logprobs.detach().double()).masked_fill(~mask, 0)


def sample_std(values: Tensor) -> Tensor:
    """Sample standard deviation (N - 1) of the values [N], a scalar. 0 for fewer than two values."""
    return values.std() if len(values) > 1 else values.new_zeros(())


def prefixed(metrics: dict[str, float]) -> dict[str, float]:
    return {PREFIX + name: value for name, value in metrics.items()}


def _bounds(truncate: float | None, band: tuple[float, float] | None) -> tuple[float, float]:
    """The bounds that metrics count as low and high: the band, or `1 / truncate` and `truncate`."""
    low, high = band if band is not None else (0.0, math.inf) if truncate is None else (1 / truncate, truncate)
    assert 0 <= low < high, f"the bounds of the weights are {low} and {high}"
    return low, high


def _weight_metrics(
    weights: Tensor, raw: Tensor, log_ratio: Tensor, mask: Tensor, level: str, low: float, high: float
) -> dict[str, float]:
    rows = mask.any(1)
    used, unbounded = weights[mask], log_ratio[:, 0][rows]
    by_row, raw_by_row = (masked_mean(x, mask=mask, dim=1)[rows] for x in (weights, raw))
    if level == "token":
        largest, smallest, above, below = used.max(), used.min(), raw[mask] > high, raw[mask] < low
    else:
        largest, smallest = unbounded.max().clamp(max=MAX_LOG_RATIO).exp(), unbounded.min().exp()
        above, below = unbounded > math.log(high), unbounded < (math.log(low) if low > 0 else -math.inf)
    mean, square = used.mean(), used.square().mean()
    metrics = {
        "mean": mean,
        "max": largest,
        "min": smallest,
        "std": used.std(unbiased=False),
        "eff_sample_size": mean.square() / square.clamp(min=1e-30),
        "ratio_fraction_high": above.double().mean(),
        "ratio_fraction_low": below.double().mean(),
        "seq_mean": by_row.mean(),
        "seq_std": sample_std(by_row),
        "seq_max": by_row.max(),
        "seq_min": by_row.min(),
        "seq_max_deviation": (by_row - 1).abs().max(),
        "seq_fraction_high": (raw_by_row > high).double().mean(),
        "seq_fraction_low": (raw_by_row < low).double().mean(),
    }
    return {f"rollout_is_{name}": float(value) for name, value in metrics.items()}


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
