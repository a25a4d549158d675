"""What must hold for every estimator of advantages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rl_compat.algorithms.advantages.gae import AdvantageEstimate, gae, reinforce_plus_plus, remax
from rl_compat.algorithms.advantages.group import (
    gdpo,
    gpg,
    grpo,
    grpo_passk,
    opo,
    optimal_token_baseline,
    reinforce_plus_plus_baseline,
    rloo,
    tir_optimal_token_baseline,
)

NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class Rows:
    """All that any estimator takes, [B, T] or [B]."""

    token_rewards: Tensor
    values: Tensor
    logprobs: Tensor
    sum_pi_squared: Tensor
    response_mask: Tensor
    rewards: Tensor
    second_rewards: Tensor
    baselines: Tensor
    groups: Tensor
    scored: Tensor

    def each(self, change: Callable[[Tensor], Tensor]) -> Rows:
        return Rows(**{field.name: change(getattr(self, field.name)) for field in fields(self)})


def by_tokens(estimator: Callable[..., AdvantageEstimate], *names: str, **settings: float):
    def run(rows: Rows) -> AdvantageEstimate:
        chosen = {name: getattr(rows, name) for name in names}
        mask = rows.response_mask & rows.scored[:, None]
        return estimator(token_rewards=rows.token_rewards, response_mask=mask, **chosen, **settings)

    return run


def by_groups(estimator: Callable[..., AdvantageEstimate], **settings: bool):
    def run(rows: Rows) -> AdvantageEstimate:
        return estimator(
            rewards=rows.rewards,
            groups=rows.groups,
            response_mask=rows.response_mask,
            scored=rows.scored,
            **settings,
        )

    return run


def run_gae(rows: Rows) -> AdvantageEstimate:
    mask = rows.response_mask & rows.scored[:, None]
    return gae(token_rewards=rows.token_rewards, values=rows.values, response_mask=mask, gamma=0.9, gae_lambda=0.8)


def run_gdpo(rows: Rows) -> AdvantageEstimate:
    return gdpo(
        reward_parts={"a": rows.rewards, "b": rows.second_rewards},
        weights={"a": 0.7, "b": 0.3},
        groups=rows.groups,
        response_mask=rows.response_mask,
        scored=rows.scored,
    )


OPTIMAL = ("logprobs", "sum_pi_squared", "groups")
ESTIMATORS: dict[str, Callable[[Rows], AdvantageEstimate]] = {
    "gae": run_gae,
    "reinforce_plus_plus": by_tokens(reinforce_plus_plus, gamma=0.9),
    "remax": by_tokens(remax, "baselines"),
    "optimal_token_baseline": by_tokens(optimal_token_baseline, *OPTIMAL),
    "tir_optimal_token_baseline": by_tokens(tir_optimal_token_baseline, *OPTIMAL),
    "grpo": by_groups(grpo, normalize_by_std=True),
    "dr_grpo": by_groups(grpo, normalize_by_std=False),
    "grpo_passk": by_groups(grpo_passk, normalize_by_std=True),
    "rloo": by_groups(rloo),
    "opo": by_groups(opo),
    "gpg": by_groups(gpg),
    "reinforce_plus_plus_baseline": by_groups(reinforce_plus_plus_baseline),
    "gdpo": run_gdpo,
}


@pytest.fixture(params=ESTIMATORS)
def estimator(request) -> Callable[[Rows], AdvantageEstimate]:
    return ESTIMATORS[request.param]


@pytest.fixture
def rows(responses) -> Rows:
    generator = torch.Generator().manual_seed(11)
    return Rows(
        token_rewards=responses.token_rewards,
        values=responses.values,
        logprobs=-responses.logprobs.abs(),
        sum_pi_squared=torch.rand(6, 7, dtype=torch.float64, generator=generator),
        response_mask=responses.mask,
        rewards=responses.rewards,
        second_rewards=torch.rand(6, dtype=torch.float64, generator=generator),
        baselines=torch.rand(6, dtype=torch.float64, generator=generator),
        groups=responses.groups,
        scored=torch.ones(6, dtype=torch.bool),
    )


def with_filler(rows: Rows, filler: float) -> Rows:
    """The same rows with the filler in every token that the mask leaves out."""

    def fill(x: Tensor) -> Tensor:
        return x.masked_fill(~rows.response_mask, filler) if x.dim() == 2 and x.dtype != torch.bool else x

    return rows.each(fill)


def assert_same(measured: AdvantageEstimate, expected: AdvantageEstimate) -> None:
    assert_close(measured.advantages, expected.advantages)
    assert_close(measured.returns, expected.returns)


def test_nothing_stands_outside_the_mask_and_something_inside(estimator, rows):
    estimate = estimator(rows)

    assert estimate.advantages[~rows.response_mask].abs().max().item() == 0
    assert estimate.returns[~rows.response_mask].abs().max().item() == 0
    assert estimate.advantages.abs().max().item() > 0.1


@pytest.mark.parametrize("filler", [0.0, 1e6, NAN, -float("inf")])
def test_padding_changes_nothing(estimator, rows, filler):
    assert_same(estimator(with_filler(rows, filler)), estimator(rows))


def test_more_columns_change_nothing(estimator, rows):
    wide = estimator(rows.each(lambda x: torch.nn.functional.pad(x, (0, 3)) if x.dim() == 2 else x))

    assert_same(AdvantageEstimate(*(part[:, :7] for part in wide)), estimator(rows))


def test_the_order_of_rows_changes_nothing(estimator, rows):
    order = torch.tensor([4, 1, 5, 0, 3, 2])

    expected = estimator(rows)
    assert_same(estimator(rows.each(lambda x: x[order])), AdvantageEstimate(*(part[order] for part in expected)))


def test_the_numbers_of_the_groups_do_not_matter(estimator, rows):
    assert_same(estimator(replace(rows, groups=17 - 5 * rows.groups)), estimator(rows))


@pytest.mark.parametrize("group", [0, 5])
def test_fully_masked_rows_without_a_score_change_nothing(estimator, rows, group):
    more = rows.each(lambda x: torch.cat([x, x[:2]]))
    more = with_filler(replace(more, response_mask=more.response_mask & (torch.arange(8) < 6)[:, None]), NAN)
    more.scored[6:] = False
    more.groups[6:] = group

    measured = estimator(more)

    assert_same(AdvantageEstimate(*(part[:6] for part in measured)), estimator(rows))
    assert measured.advantages[6:].abs().max().item() == 0


def test_an_unscored_row_moves_nobody(estimator, rows):
    """A-REW-07: the others get what they would get without it."""
    scored = torch.tensor([True, True, False, True, True, True])
    spoilt = replace(rows, **{name: getattr(rows, name).clone() for name in ("token_rewards", "rewards")})
    spoilt.token_rewards[2], spoilt.rewards[2] = NAN, NAN

    measured = estimator(replace(spoilt, scored=scored))

    alone = estimator(rows.each(lambda x: x[scored]))
    assert_same(AdvantageEstimate(*(part[scored] for part in measured)), alone)
    assert measured.advantages[2].abs().max().item() == 0


def test_no_scored_row_at_all_gives_zero(estimator, rows):
    estimate = estimator(replace(rows, scored=torch.zeros(6, dtype=torch.bool)))

    assert estimate.advantages.abs().max().item() == 0


def test_one_token_is_enough(estimator, rows):
    estimate = estimator(rows.each(lambda x: x[:1, :1] if x.dim() == 2 else x[:1]))

    assert estimate.advantages.shape == (1, 1)
    assert estimate.advantages.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_is_computed_in_float32(estimator, rows, dtype):
    estimate = estimator(rows.each(lambda x: x.to(dtype) if x.is_floating_point() else x))

    assert estimate.advantages.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_close(estimate.advantages, estimator(rows).advantages, atol=0.05, rtol=0.05, check_dtype=False)
