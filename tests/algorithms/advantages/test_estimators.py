from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from fakes.part_settings import estimator_settings
from torch import Tensor
from torch.testing import assert_close

from rl_compat.algorithms.advantages.estimators import ESTIMATORS, AdvantageInputs, VTraceBounds
from rl_compat.algorithms.advantages.gae import gae, vtrace
from rl_compat.algorithms.advantages.group import gdpo, grpo


@pytest.fixture
def inputs(responses) -> AdvantageInputs:
    return AdvantageInputs(
        token_rewards=responses.token_rewards,
        rewards=responses.rewards,
        response_mask=responses.mask,
        groups=responses.groups,
        values=responses.values,
        baselines=responses.values[:, 0],
        logprobs=-responses.logprobs.abs(),
        rollout_logprobs=-responses.old_logprobs.abs(),
        sum_pi_squared=responses.returns.sigmoid(),
        cost_advantages=responses.advantages * responses.mask,
        multiplier=0.7,
        reward_parts={"one": responses.rewards, "two": responses.advantages[:, 0]},
        part_weights={"one": 1.0, "two": 0.5},
        **estimator_settings(gamma=0.99, gae_lambda=0.95, whiten=False),
    )


def changed(inputs: AdvantageInputs, change: Callable[[Tensor], Tensor], *names: str) -> AdvantageInputs:
    """The inputs with the tensors of these names, or all, passed through a function."""
    names = names or tuple(name for name in FIELDS if isinstance(getattr(inputs, name), Tensor))
    parts = {name: change(part) for name, part in inputs.reward_parts.items()}
    return dataclasses.replace(inputs, reward_parts=parts, **{name: change(getattr(inputs, name)) for name in names})


FIELDS = [field.name for field in dataclasses.fields(AdvantageInputs)]
PER_TOKEN = ("token_rewards", "values", "logprobs", "rollout_logprobs", "sum_pi_squared")


def test_ppo_is_gae_with_the_settings_it_is_given(inputs):
    estimate = ESTIMATORS["ppo"](inputs)

    expected = gae(
        token_rewards=inputs.token_rewards,
        values=inputs.values,
        response_mask=inputs.response_mask,
        gamma=0.99,
        gae_lambda=0.95,
    )
    assert torch.equal(estimate.advantages, expected.advantages)
    assert torch.equal(estimate.returns, expected.returns)


@pytest.mark.parametrize(
    ("run", "gamma", "gae_lambda"), [("gae gamma=1.0 lam=1.0", 1.0, 1.0), ("gae gamma=0.99 lam=0.95", 0.99, 0.95)]
)
def test_whitened_ppo_matches_the_golden_advantages(golden, run, gamma, gae_lambda):
    """Outside the mask ours are 0 on purpose, where the golden ones keep a whitened leftover."""
    estimate = ESTIMATORS["ppo"](
        AdvantageInputs(
            token_rewards=golden.input("token_rewards"),
            rewards=torch.zeros(6),
            values=golden.input("values"),
            response_mask=golden.mask,
            groups=golden.groups,
            **estimator_settings(gamma=gamma, gae_lambda=gae_lambda, whiten=True),
        )
    )

    expected = golden.output("advantages", run, "advantages")
    assert_close(estimate.advantages[golden.mask], expected[golden.mask], atol=1e-6, rtol=0)
    assert estimate.advantages[~golden.mask].abs().max().item() == 0
    expected = golden.output("advantages", run, "returns")
    assert_close(estimate.returns[golden.mask], expected[golden.mask], atol=1e-6, rtol=0)


def test_whitening_leaves_the_returns_alone(inputs):
    plain = ESTIMATORS["ppo"](inputs)
    whitened = ESTIMATORS["ppo"](dataclasses.replace(inputs, whiten=True))

    assert torch.equal(whitened.returns, plain.returns)
    assert_close(whitened.advantages[inputs.response_mask].var(), torch.tensor(1.0, dtype=torch.float64))


def test_grpo_compares_the_sums_of_token_rewards(golden):
    """So a KL penalty in the reward counts."""
    estimate = ESTIMATORS["grpo"](
        AdvantageInputs(
            token_rewards=golden.input("token_rewards"),
            rewards=torch.zeros(6),
            response_mask=golden.mask,
            groups=golden.groups,
            **estimator_settings(),
        )
    )

    assert_close(estimate.advantages, golden.output("advantages", "grpo", "advantages"), atol=1e-6, rtol=0)


GOLDEN_RUNS = {
    "grpo": ("grpo", {}),
    "dr_grpo": ("grpo norm_adv_by_std_in_grpo=False", {"normalize_by_std": False}),
    "rloo": ("rloo", {}),
    "reinforce_plus_plus": ("reinforce_plus_plus gamma=0.99", {"gamma": 0.99}),
    "reinforce_plus_plus_baseline": ("reinforce_plus_plus_baseline", {}),
    "opo": ("opo", {}),
    "gpg": ("gpg", {}),
    "remax": ("remax", {}),
    "optimal_token_baseline": ("optimal_token_baseline", {}),
    "tir_optimal_token_baseline": ("tir_optimal_token_baseline", {}),
}
"algorithm to the golden run and the settings that it was made with"


@pytest.mark.parametrize("name", GOLDEN_RUNS)
def test_an_algorithm_by_its_name_gives_the_golden_advantages(golden, name):
    run, settings = GOLDEN_RUNS[name]

    estimate = ESTIMATORS[name](
        AdvantageInputs(
            token_rewards=golden.input("token_rewards"),
            rewards=torch.zeros(6),
            response_mask=golden.mask,
            groups=golden.groups,
            baselines=golden.input("reward_baselines"),
            logprobs=golden.input("old_logprobs"),
            sum_pi_squared=golden.input("sum_pi_squared"),
            **estimator_settings(**settings),
        )
    )

    expected = golden.output("advantages", run, "advantages").masked_fill(~golden.mask, 0)
    assert_close(estimate.advantages, expected, atol=1e-6, rtol=0)


def test_grpo_compares_an_empty_response_by_its_outcome(inputs):
    """A-REW-11: its token rewards are padding and never count."""
    estimate = ESTIMATORS["grpo"](inputs)

    scores = (inputs.token_rewards * inputs.response_mask).sum(1)
    scores[4] = inputs.rewards[4]
    expected = grpo(rewards=scores, groups=inputs.groups, response_mask=inputs.response_mask, normalize_by_std=True)
    assert_close(estimate.advantages, expected.advantages)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_unscored_rows_get_nothing_and_move_nobody(inputs, name):
    """A-REW-07: the rows with a score get what they would get without the others."""
    inputs = dataclasses.replace(inputs, whiten=True)
    scored = torch.tensor([True, True, False, True, True, True])

    def spoiled(x: Tensor) -> Tensor:
        return torch.where(scored if x.dim() == 1 else scored[:, None], x, float("nan"))

    mask = inputs.response_mask & scored[:, None]
    estimate = ESTIMATORS[name](
        dataclasses.replace(changed(inputs, spoiled, "rewards", "token_rewards"), scored=scored, response_mask=mask)
    )

    alone = ESTIMATORS[name](changed(inputs, lambda x: x[scored]))
    assert_close(estimate.advantages[scored], alone.advantages)
    assert_close(estimate.returns[scored], alone.returns)
    assert estimate.advantages[2].abs().max().item() == 0


@pytest.mark.parametrize("name", ESTIMATORS)
def test_padding_and_the_order_of_rows_change_nothing(inputs, responses, name):
    inputs = dataclasses.replace(inputs, whiten=True)
    order = torch.tensor([3, 5, 0, 4, 2, 1])

    def padded(x: Tensor) -> Tensor:
        return x if x.dim() == 1 else responses.padded_with(x, float("nan"))

    estimate = ESTIMATORS[name](changed(changed(inputs, padded, *PER_TOKEN), lambda x: x[order]))

    expected = ESTIMATORS[name](inputs)
    assert_close(estimate.advantages, expected.advantages[order])
    assert_close(estimate.returns, expected.returns[order])


def test_ppo_takes_its_returns_from_v_trace_when_asked(inputs):
    bounds = VTraceBounds(rho=0.9, c=0.8)

    estimate = ESTIMATORS["ppo"](dataclasses.replace(inputs, vtrace=bounds))

    expected = vtrace(
        token_rewards=inputs.token_rewards,
        values=inputs.values,
        old_logprobs=inputs.logprobs,
        rollout_logprobs=inputs.rollout_logprobs,
        response_mask=inputs.response_mask,
        gamma=0.99,
        gae_lambda=0.95,
        max_rho=0.9,
        max_c=0.8,
    )
    assert torch.equal(estimate.advantages, expected.advantages)
    assert torch.equal(estimate.returns, expected.returns)


def test_a_constrained_advantage_is_that_of_the_reward_less_the_price_of_the_cost(inputs):
    estimate = ESTIMATORS["ppo_lagrangian"](inputs)

    reward = ESTIMATORS["ppo"](inputs)
    assert inputs.cost_advantages is not None
    assert_close(estimate.advantages, (reward.advantages - 0.7 * inputs.cost_advantages) / 1.7)
    assert torch.equal(estimate.returns, reward.returns)


def test_gdpo_compares_every_part_by_itself(golden):
    parts = {"one": golden.input("token_rewards").sum(1), "two": golden.input("values")[:, 0]}
    inputs = AdvantageInputs(
        token_rewards=golden.input("token_rewards"),
        rewards=torch.zeros(6),
        response_mask=golden.mask,
        groups=golden.groups,
        reward_parts=parts,
        part_weights={"one": 1.0, "two": 0.5},
        **estimator_settings(),
    )

    estimate = ESTIMATORS["gdpo"](inputs)

    expected = gdpo(
        reward_parts=parts, weights={"one": 1.0, "two": 0.5}, groups=golden.groups, response_mask=golden.mask
    )
    assert torch.equal(estimate.advantages, expected.advantages)
