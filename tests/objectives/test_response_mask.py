"""Tokens that the policy did not write, such as the output of a tool, change nothing about those that it wrote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fakes.part_settings import experience_settings, loss_settings
from torch import Tensor

from rl_compat.algorithms.advantages.estimators import ESTIMATORS
from rl_compat.algorithms.losses.policy import POLICY_LOSSES
from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.batch import Batch
from rl_compat.config.types import OffPolicyConfig, VTraceConfig
from rl_compat.objectives.actor_critic import (
    critic_loss,
    policy_loss,
    policy_loss_inputs,
)
from rl_compat.objectives.experience import Experience, RewardParts, make_experience
from rl_compat.trainer.online.metrics import data_metrics, mismatch_metrics
from rl_compat.training.types import BatchTotals, TokenOutputs
from rl_compat.trajectory import Prompt, Trajectory

LENGTHS = (4, 2, 6, 3, 1, 5)
GROUPS = (10, 10, 12, 12, 15, 15)
REWARDS = (1.0, 0.0, 0.5, 0.25, 1.0, -1.0)
INSERTED: tuple[dict[int, int], ...] = ({1: 3}, {}, {2: 1, 5: 2}, {3: 4}, {0: 2}, {4: 1})
"foreign tokens before the token of this place of each row; at the place of the length they are its last ones"
PER_TOKEN = ("rollout_logprobs", "old_logprobs", "ref_logprobs", "values", "cost_values", "sum_pi_squared")
NUMBERS = {"clip_cov__fraction": 0.3, "clip_cov__low": -5.0, "kl_cov__fraction": 0.3, "kl_cov__coef": 1.0}


def masks(*, foreign: bool) -> list[tuple[bool, ...]]:
    """One entry per token of each row: False on the inserted ones."""
    rows = []
    for length, inserted in zip(LENGTHS, INSERTED, strict=True):
        row: list[bool] = []
        for place in range(length + 1):
            row += [False] * (inserted.get(place, 0) if foreign else 0)
            row += [True] if place < length else []
        rows.append(tuple(row))
    return rows


def batch(*, foreign: bool, filler: float = 30.0) -> Batch:
    """The same policy tokens with or without others between them, whose numbers are large."""
    generator = torch.Generator().manual_seed(3)
    kept = {name: [-torch.rand(length, generator=generator) for length in LENGTHS] for name in PER_TOKEN}
    trajectories = [
        Trajectory(
            prompt=Prompt(token_ids=(7, 8), text=""),
            group=group,
            response_ids=(9,) * len(mask),
            rollout_logprobs=(0.0,) * len(mask),
            finish_reason="stop",
            policy_versions=(4,) * len(mask),
            response_mask=mask if foreign else (),
        )
        for group, mask in zip(GROUPS, masks(foreign=foreign), strict=True)
    ]
    made = Batch.from_trajectories(trajectories)
    assert made.response_mask.sum(1).tolist() == list(LENGTHS)
    return made.with_(**{name: spread(rows, made, filler=filler) for name, rows in kept.items()})


def spread(rows: list[Tensor], onto: Batch, *, filler: float) -> Tensor:
    """The numbers of each row on its policy tokens [B, T], `filler` elsewhere."""
    out = torch.full(onto.response_ids.shape, filler)
    for row, numbers in enumerate(rows):
        out[row, onto.response_mask[row]] = numbers
    return out


def of_policy(values: Tensor | None, held: Batch) -> Tensor:
    """The entries of the policy tokens, row after row."""
    assert values is not None
    return values[held.response_mask]


def experience(name: str, *, foreign: bool, filler: float = 30.0, **settings: Any) -> Experience:
    return make_experience(
        batch(foreign=foreign, filler=filler),
        rewards=REWARDS,
        settings=experience_settings(name, gae_lambda=0.9, gamma=0.95, **settings),
        kl_coef=0.1,
        parts=RewardParts(values={"a": REWARDS, "b": REWARDS[::-1]}, weights={"a": 1.0, "b": 0.5})
        if ALGORITHMS[name].needs_reward_parts
        else None,
        greedy_rewards=[0.5, 0.0, 1.0] if name == "remax" else None,
        costs=REWARDS[::-1] if name == "ppo_lagrangian" else None,
        multiplier=0.5,
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kl_in_reward": "k1"},
        {"off_policy": OffPolicyConfig(importance="token", truncate=1.1, normalize=True)},
        {"off_policy": OffPolicyConfig(importance="sequence", band=(0.5, 2.0))},
        {"off_policy": OffPolicyConfig(vtrace=VTraceConfig(enabled=True, c=0.9))},
    ],
    ids=["plain", "kl", "token", "sequence", "vtrace"],
)
@pytest.mark.parametrize("name", sorted(ESTIMATORS.keys() - {"optimal_token_baseline"}))
def test_foreign_tokens_change_no_advantage_and_get_none(name: str, settings: dict[str, Any]) -> None:
    plain, mixed = (experience(name, foreign=foreign, **settings) for foreign in (False, True))
    assert mixed.reward_kl == pytest.approx(plain.reward_kl, abs=1e-6)
    assert mixed.metrics == pytest.approx(dict(plain.metrics), rel=1e-5, abs=1e-6)
    for field in ("advantages", "returns", "token_rewards"):
        ours, theirs = getattr(mixed.batch, field), getattr(plain.batch, field)
        torch.testing.assert_close(of_policy(ours, mixed.batch), of_policy(theirs, plain.batch))
        assert not ours[~mixed.batch.response_mask].any()
    if plain.batch.weights is not None:
        torch.testing.assert_close(
            of_policy(mixed.batch.weights, mixed.batch), of_policy(plain.batch.weights, plain.batch)
        )


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_is_computed_at_foreign_tokens_changes_nothing(name: str) -> None:
    """`optimal_token_baseline` compares tokens by column, so that foreign tokens move its baseline but their numbers
    do not."""
    one, other = (experience(name, foreign=True, filler=filler, kl_in_reward="k1") for filler in (30.0, -7.0))
    for field in ("advantages", "returns", "token_rewards"):
        assert torch.equal(getattr(one.batch, field), getattr(other.batch, field))


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "token-sum"])
@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_foreign_tokens_change_no_policy_loss_and_get_no_gradient(name: str, aggregation: str) -> None:
    settings = loss_settings(
        policy_loss=name,
        entropy_coef=0.01,
        kl_loss="k3",
        kl_loss_coef=0.1,
        loss_aggregation=aggregation,
        width=9,
        **NUMBERS,
    )
    found = []
    for foreign in (False, True):
        held = experience("ppo", foreign=foreign).batch
        current = [-torch.rand(n, generator=torch.Generator().manual_seed(n)) for n in LENGTHS]
        logprobs = spread(current, held, filler=-20.0).requires_grad_()
        entropy = spread([numbers.abs() for numbers in current], held, filler=40.0).requires_grad_()
        select = POLICY_LOSSES[name].select
        if select is not None:
            held = held.with_(selection=select(policy_loss_inputs(held, logprobs.detach(), settings), 5))
        totals = BatchTotals(num_tokens=sum(LENGTHS), num_sequences=len(LENGTHS))
        loss, metrics = policy_loss(held, TokenOutputs(logprobs=logprobs, entropy=entropy), totals, settings)
        loss.backward()
        for gradient in (logprobs.grad, entropy.grad):
            assert gradient is not None
            assert not gradient[~held.response_mask].any()
        found.append((loss.detach(), of_policy(logprobs.grad, held), of_policy(entropy.grad, held), metrics))
    torch.testing.assert_close(found[1], found[0])


def test_foreign_tokens_change_no_value_loss_and_get_no_gradient() -> None:
    found = []
    for foreign in (False, True):
        held = experience("ppo", foreign=foreign).batch
        current = [torch.rand(n, generator=torch.Generator().manual_seed(n)) for n in LENGTHS]
        values = spread(current, held, filler=50.0).requires_grad_()
        totals = BatchTotals(num_tokens=sum(LENGTHS), num_sequences=len(LENGTHS))
        loss, metrics = critic_loss(held, values, totals, loss_settings())
        loss.backward()
        assert values.grad is not None
        assert not values.grad[~held.response_mask].any()
        found.append((loss.detach(), of_policy(values.grad, held), metrics))
    torch.testing.assert_close(found[1], found[0])


def test_foreign_tokens_change_no_metric_but_the_length_of_responses() -> None:
    plain, mixed = (experience("ppo", foreign=foreign) for foreign in (False, True))
    found = [data_metrics(one.batch, scored=one.scored) | mismatch_metrics(one.batch) for one in (plain, mixed)]
    lengths = {name for name in found[0] if name.startswith("response_length/")}
    assert {name: found[1][name] for name in found[1].keys() - lengths} == pytest.approx(
        {name: found[0][name] for name in found[0].keys() - lengths}, rel=1e-5, abs=1e-6
    )
    assert found[1]["response_length/max"] == max(len(mask) for mask in masks(foreign=True))


def test_a_trajectory_counts_the_tokens_of_the_policy() -> None:
    whole = Trajectory(
        prompt=Prompt(token_ids=(1,), text=""),
        group=0,
        response_ids=(5, 6, 7),
        rollout_logprobs=(-1.0, 0.0, -1.0),
        finish_reason="stop",
    )
    assert whole.num_policy_tokens == 3
    mixed = replace(whole, response_mask=(True, False, True), policy_versions=(2, 2, 3))
    assert mixed.num_policy_tokens == 2
    made = Batch.from_trajectories([mixed, replace(mixed, response_mask=(True, True, True))])
    assert made.response_mask.int().tolist() == [[1, 0, 1], [1, 1, 1]]
    assert made.response_lengths.tolist() == [3, 3]
    assert made.policy_versions is not None
    assert made.policy_versions.tolist() == [[2, 2, 3], [2, 2, 3]]
    assert Batch.from_trajectories([whole, mixed]).policy_versions is None
    with pytest.raises(AssertionError):
        replace(whole, response_mask=(True,))
    with pytest.raises(AssertionError):
        replace(whole, policy_versions=(1, 1))
