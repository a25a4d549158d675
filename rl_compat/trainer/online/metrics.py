"""The metrics of a step, under verl's names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rl_compat.algorithms.advantages.group import zero_spread_fraction
from rl_compat.algorithms.losses.value import explained_variance
from rl_compat.algorithms.off_policy import importance
from rl_compat.batch import Batch


def data_metrics(batch: Batch, *, scored: Tensor) -> dict[str, float]:
    """Rewards, advantages, values and lengths of a step. `scored` [B] is False on rows without a reward."""
    assert batch.rewards is not None
    assert batch.token_rewards is not None
    assert batch.advantages is not None
    assert batch.returns is not None
    mask = batch.response_mask
    metrics = {
        **_spread("critic/score", batch.rewards[scored]),
        **_spread("critic/rewards", (batch.token_rewards * mask).sum(1)),
        **_spread("critic/advantages", batch.advantages[mask]),
        **_spread("critic/returns", batch.returns[mask]),
        **_spread("response_length", batch.response_lengths.float()),
        **_spread("prompt_length", torch.tensor([float(len(ids)) for ids in batch.prompt_ids])),
        "response_length/clip_ratio": float(batch.truncated.float().mean()),
        "training/zero_spread_groups": zero_spread_fraction(rewards=batch.rewards, groups=batch.groups, scored=scored),
    }
    if batch.costs is not None:
        assert batch.cost_values is not None
        assert batch.cost_returns is not None
        metrics |= _spread("cost/score", batch.costs[scored])
        metrics |= _spread("cost/values", batch.cost_values[mask]) | _spread("cost/returns", batch.cost_returns[mask])
        metrics["cost/vf_explained_var"] = float(
            explained_variance(values=batch.cost_values, returns=batch.cost_returns, mask=mask)
        )
    if batch.values is not None:
        metrics |= _spread("critic/values", batch.values[mask])
        metrics["critic/vf_explained_var"] = float(
            explained_variance(values=batch.values, returns=batch.returns, mask=mask)
        )
    return metrics


def mismatch_metrics(batch: Batch) -> dict[str, float]:
    """The difference of the rollout's log-probabilities from the trainer's, if the step computed the latter.

    Empty if the rollout's log-probabilities serve as the old ones.
    """
    assert batch.rollout_logprobs is not None
    mask = batch.response_mask
    if batch.old_logprobs is None or batch.old_logprobs is batch.rollout_logprobs or not mask.any():
        return {}
    rollout, trained = batch.rollout_logprobs[mask], batch.old_logprobs[mask]
    gap = (trained - rollout).abs()
    probability_gap = (trained.exp() - rollout.exp()).abs()
    return {
        "training/rollout_logprobs_diff_mean": float(gap.mean()),
        "training/rollout_logprobs_diff_max": float(gap.max()),
        "training/rollout_probs_diff_mean": float(probability_gap.mean()),
        "training/rollout_probs_diff_max": float(probability_gap.max()),
        **importance.mismatch_metrics(
            old_logprobs=batch.old_logprobs, rollout_logprobs=batch.rollout_logprobs, response_mask=mask
        ),
    }


def staleness_metrics(batch: Batch, *, version: int) -> dict[str, float]:
    """The age of each response in policy versions, and the effective sample size, where `version` learns from it.

    The age is that of its oldest token. The effective sample size is (mean w)² / mean w² over all tokens, as a fraction
    of them, of the ratios w of the policy that learns to the one that drew.
    """
    assert batch.policy_versions is not None and batch.rollout_logprobs is not None
    drawn = torch.arange(batch.response_ids.shape[1]) < batch.response_lengths[:, None]
    ages = (version - batch.policy_versions).masked_fill(~drawn, 0).amax(1)[drawn.any(1)]
    metrics: dict[str, float] = {}
    if len(ages):
        counts = torch.bincount(ages.clamp(min=0))
        metrics |= {f"async/staleness/{age}": float(count) / len(ages) for age, count in enumerate(counts.tolist())}
        metrics |= {"async/staleness/mean": float(ages.float().mean()), "async/staleness/max": float(ages.max())}
    mask = batch.response_mask
    if batch.old_logprobs is not None and batch.old_logprobs is not batch.rollout_logprobs and mask.any():
        log_ratio = importance.log_ratio_of(batch.old_logprobs, batch.rollout_logprobs, mask)[mask]
        weights = (log_ratio - log_ratio.max()).exp()
        metrics["async/ess"] = float(weights.mean().square() / weights.square().mean())
    return metrics


def timing_metrics(seconds: Mapping[str, float], batch: Batch) -> dict[str, float]:
    """Seconds by phase, and tokens per second of the step and of generation."""
    num_tokens = sum(batch.sequence_lengths())
    num_response_tokens = int(batch.response_lengths.sum())
    metrics = {f"timing_s/{phase}": spent for phase, spent in seconds.items()}
    metrics["perf/total_num_tokens"] = float(num_tokens)
    metrics["perf/time_per_step"] = seconds["step"]
    metrics["perf/throughput"] = num_tokens / seconds["step"]
    if seconds.get("gen"):
        metrics["perf/gen_tokens_per_second"] = num_response_tokens / seconds["gen"]
    return metrics


def proportion_interval(successes: float, trials: int) -> tuple[float, float]:
    """95 % interval of a proportion (Wilson, JASA 22, 1927, p. 209)."""
    if trials == 0:
        return 0.0, 1.0
    z = 1.959963984540054
    p = successes / trials
    centre = p + z * z / (2 * trials)
    spread = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of a mean by the normal approximation, within the range of the values; None if all are equal."""
    data = torch.tensor(values, dtype=torch.float64)
    if len(values) < 2 or bool((data == data[0]).all()):
        return None
    mean, half = float(data.mean()), 1.959963984540054 * float(data.std()) / math.sqrt(len(values))
    return max(mean - half, float(data.min())), min(mean + half, float(data.max()))


def _spread(name: str, values: Tensor) -> dict[str, float]:
    if values.numel() == 0:
        return {}
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }
