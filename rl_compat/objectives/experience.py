"""Token rewards, advantages and returns of scored responses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real

import torch
from torch import Tensor

from rl_compat.algorithms.advantages.estimators import ESTIMATORS, AdvantageInputs, VTraceBounds, with_critic
from rl_compat.algorithms.advantages.gae import add_kl_penalty, outcome_token_rewards
from rl_compat.algorithms.kl import kl_estimate
from rl_compat.algorithms.masking import masked_mean
from rl_compat.algorithms.off_policy.importance import importance_weights
from rl_compat.algorithms.off_policy.rejection import rejection_mask
from rl_compat.algorithms.off_policy.rejection_rules import parse_rejection_rules
from rl_compat.algorithms.table import ALGORITHMS, is_offline
from rl_compat.batch import Batch
from rl_compat.config.options import check_section
from rl_compat.config.types import AlgorithmConfig, OffPolicyConfig
from rl_compat.errors import ConfigError, check_type

Column = Sequence[float | None]
"one number per response or group; None where there is none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperienceSettings:
    """The settings of the advantage estimator, the KL penalty in the reward, and off-policy correction."""

    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    off_policy: OffPolicyConfig = field(default_factory=OffPolicyConfig)

    def __post_init__(self) -> None:
        """Raise ConfigError for a value that its setting does not allow."""
        check_section("algorithm", self.algorithm)
        check_section("off_policy", self.off_policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardParts:
    """The rewards of a step by name, for an algorithm that weights them itself."""

    values: Mapping[str, Column]
    weights: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """What the updates learn from."""

    batch: Batch
    "with rewards, token rewards, advantages and, with a critic, returns"
    scored: Tensor
    "[B] bool: False on responses without a reward"
    reward_kl: float
    "mean KL per token between the policy and the reference, 0 without one in the reward"
    metrics: Mapping[str, float] = field(default_factory=dict)
    "of the off-policy correction"


def make_experience(
    batch: Batch,
    *,
    rewards: Column,
    settings: ExperienceSettings,
    kl_coef: float = 0.0,
    parts: RewardParts | None = None,
    greedy_rewards: Column | None = None,
    costs: Column | None = None,
    multiplier: float = 0.0,
) -> Experience:
    """The batch with rewards, token rewards, advantages and returns.

    `rewards` holds one outcome per response. A response whose outcome is None is excluded: its mask is cleared, and
    no group statistic counts it. `greedy_rewards` (ReMax) holds one outcome per group, in ascending order; None
    excludes the group. `costs` (PPO-Lagrangian) holds one cost per response, with None as for rewards, and
    `multiplier` is their Lagrange multiplier. A KL in the reward needs `old_logprobs` and `ref_logprobs`, PPO needs
    `values`, and a cost needs `cost_values`. Raises ConfigError for a field or argument that the algorithm needs and
    lacks, and for one that it does not use.
    """
    check_type("batch", batch, Batch, hint="use `sequences.batch`")
    check_type("settings", settings, ExperienceSettings)
    _check_fields(batch, settings)
    _check_arguments(batch, settings.algorithm, rewards, greedy_rewards, costs, parts)
    algorithm, vtrace = settings.algorithm, settings.off_policy.vtrace
    outcome, scored = _column(rewards)
    baselines = outcome_costs = None
    if greedy_rewards is not None:
        position = batch.groups.unique(return_inverse=True)[1]
        baselines, known = (of_group[position] for of_group in _column(greedy_rewards))
        scored = scored & known
    if costs is not None:
        outcome_costs, known = _column(costs)
        scored = scored & known
    batch = batch.with_(response_mask=batch.response_mask & scored[:, None], rewards=outcome, costs=outcome_costs)
    metrics: dict[str, float] = {}
    if corrects(settings.off_policy) and not settings.off_policy.bypass:
        batch, metrics = correct(batch, settings.off_policy)
    token_rewards, reward_kl = _token_rewards(batch, algorithm, kl_coef=kl_coef)
    inputs = AdvantageInputs(
        token_rewards=token_rewards,
        rewards=outcome,
        values=batch.values,
        response_mask=batch.response_mask,
        groups=batch.groups,
        scored=scored,
        baselines=baselines,
        logprobs=batch.old_logprobs,
        rollout_logprobs=batch.rollout_logprobs,
        sum_pi_squared=batch.sum_pi_squared,
        importance=batch.weights,
        reward_parts={} if parts is None else {name: _column(part)[0] for name, part in parts.values.items()},
        part_weights={} if parts is None else parts.weights,
        multiplier=multiplier,
        gamma=algorithm.gamma,
        gae_lambda=algorithm.gae_lambda,
        whiten=algorithm.whiten_advantages,
        normalize_by_std=algorithm.normalize_by_std,
        vtrace=VTraceBounds(rho=vtrace.rho, c=vtrace.c) if vtrace.enabled else None,
    )
    if costs is not None:
        assert batch.costs is not None and batch.cost_values is not None
        # on the last token like the reward, without a KL
        token_costs = outcome_token_rewards(
            rewards=batch.costs, response_lengths=batch.response_lengths, response_mask=batch.response_mask
        )
        cost = with_critic(inputs, token_rewards=token_costs, values=batch.cost_values)
        batch, inputs = batch.with_(cost_returns=cost.returns), replace(inputs, cost_advantages=cost.advantages)
    estimate = ESTIMATORS[algorithm.name](inputs)
    batch = batch.with_(token_rewards=token_rewards, advantages=estimate.advantages, returns=estimate.returns)
    return Experience(batch=batch, scored=scored, reward_kl=reward_kl, metrics=metrics)


def _check_fields(batch: Batch, settings: ExperienceSettings) -> None:
    algorithm, off_policy = settings.algorithm, settings.off_policy
    name, row = algorithm.name, ALGORITHMS[algorithm.name]
    if is_offline(name):
        raise ConfigError(f"`{name}` learns from offline data, without advantages", hint="use `rl_compat.train`")
    reader = f"`algorithm.name={name}`"
    if row.needs_critic:
        batch.require("values", reader=reader)
    if row.needs_cost:
        batch.require("cost_values", reader=reader)
    if row.needs_sum_pi_squared:
        batch.require("old_logprobs", "sum_pi_squared", reader=reader)
    if algorithm.kl_in_reward != "none":
        batch.require("old_logprobs", "ref_logprobs", reader=f"`algorithm.kl_in_reward={algorithm.kl_in_reward}`")
    if (corrects(off_policy) and not off_policy.bypass) or (row.needs_critic and off_policy.vtrace.enabled):
        batch.require("old_logprobs", "rollout_logprobs", reader="the off-policy correction")


def _check_arguments(
    batch: Batch,
    algorithm: AlgorithmConfig,
    rewards: Column,
    greedy_rewards: Column | None,
    costs: Column | None,
    parts: RewardParts | None,
) -> None:
    row, rows = ALGORITHMS[algorithm.name], len(batch)
    columns: list[tuple[str, Column | None, int, bool]] = [
        ("rewards", rewards, rows, True),
        ("greedy_rewards", greedy_rewards, len(batch.groups.unique()), row.needs_greedy_response),
        ("costs", costs, rows, row.needs_cost),
        *((f"parts.{name}", part, rows, True) for name, part in (parts.values.items() if parts is not None else ())),
    ]
    if (parts is None) == row.needs_reward_parts:
        raise ConfigError(f"`parts` is {'needed' if parts is None else 'not used'} by `algorithm.name={row.name}`")
    for name, column, length, is_used in columns:
        if (column is None) == is_used:
            raise ConfigError(f"`{name}` is {'needed' if is_used else 'not used'} by `algorithm.name={row.name}`")
        if column is None:
            continue
        if isinstance(column, str) or not hasattr(column, "__len__") or len(column) != length:
            given = f"has {len(column)} values" if hasattr(column, "__len__") else f"is a `{type(column).__name__}`"
            raise ConfigError(f"`{name}` {given}, expected a sequence of {length}")
        for position, value in enumerate(column):
            if value is not None and not (isinstance(value, Real | Tensor) and math.isfinite(value)):
                raise ConfigError(f"`{name}[{position}]` is `{value!r}`, expected a finite number or `None`")


def _token_rewards(batch: Batch, algorithm: AlgorithmConfig, *, kl_coef: float) -> tuple[Tensor, float]:
    """The outcome on the last token of the mask minus the KL penalty, [B, T], and the mean KL per token."""
    assert batch.rewards is not None
    mask, reward_kl = batch.response_mask, 0.0
    token_rewards = outcome_token_rewards(
        rewards=batch.rewards, response_lengths=batch.response_lengths, response_mask=mask
    )
    if algorithm.kl_in_reward != "none":
        assert batch.old_logprobs is not None and batch.ref_logprobs is not None
        kl = kl_estimate(algorithm.kl_in_reward, logprobs=batch.old_logprobs, ref_logprobs=batch.ref_logprobs)
        reward_kl = float(masked_mean(kl, mask=mask))
        token_rewards = add_kl_penalty(token_rewards, kl=kl, coef=kl_coef, mask=mask)
    return token_rewards, reward_kl


def _column(values: Column) -> tuple[Tensor, Tensor]:
    """The values in float32 with 0 in place of None, and a bool mask of the known ones."""
    numbers = torch.tensor([0.0 if value is None else float(value) for value in values])
    return numbers, torch.tensor([value is not None for value in values])


def corrects(config: OffPolicyConfig) -> bool:
    """Whether the settings correct a batch."""
    return config.importance != "none" or bool(config.reject)


def correct(batch: Batch, settings: OffPolicyConfig) -> tuple[Batch, dict[str, float]]:
    """The batch with `weights` and a `response_mask` without rejected tokens, from its `old_logprobs`, and metrics.

    Weights are computed with the mask before rejection, as in verl, and multiply those that the batch has.
    """
    assert batch.old_logprobs is not None
    assert batch.rollout_logprobs is not None
    both = {"old_logprobs": batch.old_logprobs, "rollout_logprobs": batch.rollout_logprobs}
    metrics: dict[str, float] = {}
    changes = {}
    if settings.importance != "none":
        importance = importance_weights(
            **both,
            response_mask=batch.response_mask,
            level=settings.importance,
            truncate=settings.truncate,
            band=settings.band,
            normalize=settings.normalize,
        )
        changes["weights"] = importance.weights if batch.weights is None else importance.weights * batch.weights
        metrics |= importance.metrics
    if settings.reject:
        rejection = rejection_mask(
            **both, response_mask=batch.response_mask, rules=parse_rejection_rules(settings.reject)
        )
        changes["response_mask"] = rejection.mask
        metrics |= rejection.metrics
    return batch.with_(**changes), metrics
