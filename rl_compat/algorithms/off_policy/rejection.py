"""Rejection sampling: mask out tokens and responses whose policy is too far from the current one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rl_compat.algorithms.masking import MAX_LOG_RATIO, masked_mean, masked_sum
from rl_compat.algorithms.off_policy.importance import log_ratio_of, prefixed, sample_std
from rl_compat.algorithms.off_policy.rejection_rules import RejectionRule


class Rejection(NamedTuple):
    """The mask [B, T] without rejected tokens, and metrics."""

    mask: Tensor
    metrics: dict[str, float]


def rejection_mask(
    *, old_logprobs: Tensor, rollout_logprobs: Tensor, response_mask: Tensor, rules: Sequence[RejectionRule]
) -> Rejection:
    """The tokens of the mask that all rules keep, all [B, T]. Statistics use the original mask."""
    mask = response_mask
    if not rules or not mask.any():
        return Rejection(mask, {})
    log_ratio = log_ratio_of(old_logprobs, rollout_logprobs, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    kept, metrics = mask, dict[str, float]()
    for rule in rules:
        values = _statistic(log_ratio, mask, rule)
        keeps = values <= rule.high
        if rule.low is not None:
            keeps &= values >= rule.low
        kept = kept & keeps
        metrics |= _rule_metrics(values, keeps, mask, rule)
    metrics |= _masked_fractions(kept, mask, "rollout_rs")
    return Rejection(kept, prefixed(metrics))


def _statistic(log_ratio: Tensor, mask: Tensor, rule: RejectionRule) -> Tensor:
    """The statistic of the rule per token, or that of the response on each of its tokens, [B, T]."""
    match rule.statistic:
        case "k1":
            values = -log_ratio
        case "k2":
            values = 0.5 * log_ratio.square()
        case "k3":
            values = torch.expm1(log_ratio) - log_ratio
    match rule.scope:
        case "token":
            return values
        case "seq_sum":
            rows = masked_sum(values, mask=mask, dim=1)
        case "seq_mean":
            rows = masked_mean(values, mask=mask, dim=1)
        case "seq_max":
            rows = values.masked_fill(~mask, 0).amax(1)
    return rows[:, None].expand(mask.shape)


def _rule_metrics(values: Tensor, keeps: Tensor, mask: Tensor, rule: RejectionRule) -> dict[str, float]:
    by_row = masked_mean(values, mask=mask, dim=1)[mask.any(1)]
    units = values[mask] if rule.scope == "token" else by_row
    low = -math.inf if rule.low is None else rule.low
    metrics = {
        "mean": values[mask].mean(),
        "max": units.max(),
        "min": units.min(),
        "std": values[mask].clamp(min=low, max=rule.high).std(unbiased=False),
        "fraction_high": (units > rule.high).double().mean(),
        "fraction_low": (units < low).double().mean(),
        "seq_mean": by_row.mean(),
        "seq_std": sample_std(by_row),
        "seq_max": by_row.max(),
        "seq_min": by_row.min(),
        "seq_max_deviation": by_row.abs().max(),
        "seq_fraction_high": (by_row > rule.high).double().mean(),
    }
    if rule.low is not None:
        metrics["seq_fraction_low"] = (by_row < low).double().mean()
    prefix = f"rollout_rs_{rule.name}"
    return {f"{prefix}_{name}": float(value) for name, value in metrics.items()} | _masked_fractions(
        keeps & mask, mask, prefix
    )


def _masked_fractions(kept: Tensor, mask: Tensor, prefix: str) -> dict[str, float]:
    """The fraction of rejected tokens, and the fraction of responses with a rejected token."""
    rejected = mask & ~kept
    return {
        f"{prefix}_masked_fraction": int(rejected.sum()) / int(mask.sum()),
        f"{prefix}_seq_masked_fraction": int(rejected.any(1).sum()) / int(mask.any(1).sum()),
    }
