"""From rewards to advantages, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from fakes.part_settings import experience_settings

from rl_compat.batch import Batch
from rl_compat.config.types import OffPolicyConfig
from rl_compat.objectives.experience import RewardParts, make_experience
from rl_compat.trajectory import Prompt, Trajectory


def batch_of(lengths: list[int], groups: list[int] | None = None) -> Batch:
    batch = Batch.from_trajectories(
        [
            Trajectory(
                prompt=Prompt(token_ids=(7, 8), text=""),
                group=row if groups is None else groups[row],
                response_ids=(9,) * length,
                rollout_logprobs=(-1.0,) * length,
                finish_reason="stop",
            )
            for row, length in enumerate(lengths)
        ]
    )
    shape = batch.response_ids.shape
    return batch.with_(
        values=torch.zeros(shape), old_logprobs=torch.full(shape, -1.0), ref_logprobs=torch.full(shape, -1.0)
    )


PLAIN_PPO = experience_settings("ppo", whiten_advantages=False)


def test_the_reward_stands_on_the_last_token_of_each_response() -> None:
    experience = make_experience(batch_of([1, 3]), rewards=[2.0, 5.0], settings=PLAIN_PPO, kl_coef=0.0)
    assert experience.batch.token_rewards is not None
    assert experience.batch.token_rewards.tolist() == [[2.0, 0.0, 0.0], [0.0, 0.0, 5.0]]
    assert experience.batch.rewards is not None
    assert experience.batch.rewards.tolist() == [2.0, 5.0]
    assert experience.reward_kl == 0.0


def test_advantages_of_ppo_are_those_of_gae() -> None:
    """A-ALG-12: worked by hand with lambda 0.95; what stands in the padding of values changes nothing."""
    batch = batch_of([3, 4])
    values = torch.tensor([[0.5, 0.25, 0.5, 99.0], [0.0, 0.0, 0.0, 0.0]])
    settings = experience_settings("ppo", gae_lambda=0.95, whiten_advantages=False)
    experience = make_experience(batch.with_(values=values), rewards=[1.0, 0.0], settings=settings, kl_coef=0.0)
    assert experience.batch.advantages is not None
    assert experience.batch.returns is not None
    torch.testing.assert_close(experience.batch.advantages[0], torch.tensor([0.43875, 0.725, 0.5, 0.0]))
    torch.testing.assert_close(experience.batch.returns[0], torch.tensor([0.93875, 0.975, 1.0, 0.0]))


def test_the_kl_in_the_reward_is_subtracted_from_each_token() -> None:
    batch = batch_of([1, 2]).with_(
        old_logprobs=torch.tensor([[-1.0, 0.0], [-1.0, -2.0]]), ref_logprobs=torch.tensor([[-3.0, 50.0], [-1.0, -1.0]])
    )
    settings = experience_settings("ppo", whiten_advantages=False, kl_in_reward="k1")
    experience = make_experience(batch, rewards=[1.0, 1.0], settings=settings, kl_coef=0.1)
    assert experience.batch.token_rewards is not None
    torch.testing.assert_close(experience.batch.token_rewards, torch.tensor([[0.8, 0.0], [0.0, 1.1]]))
    assert experience.reward_kl == pytest.approx((2.0 + 0.0 - 1.0) / 3)


def test_groups_are_compared_within_themselves_in_any_order_of_rows() -> None:
    """A-ALG-03"""
    batch = batch_of([1, 1, 1, 1], groups=[0, 1, 0, 1])
    settings = experience_settings("grpo")
    experience = make_experience(batch, rewards=[1.0, 5.0, 0.0, 3.0], settings=settings, kl_coef=0.0)
    assert experience.batch.advantages is not None
    expected = torch.tensor([1.0, 1.0, -1.0, -1.0]) / 2**0.5
    torch.testing.assert_close(experience.batch.advantages[:, 0], expected, rtol=1e-5, atol=0)


def test_a_response_without_a_reward_is_left_out_of_its_group() -> None:
    """A-REW-07"""
    batch = batch_of([2, 2, 2], groups=[0, 0, 0])
    experience = make_experience(batch, rewards=[1.0, None, 0.0], settings=experience_settings("grpo"), kl_coef=0.0)
    assert experience.scored.tolist() == [True, False, True]
    assert experience.batch.response_mask.any(dim=1).tolist() == [True, False, True]
    assert experience.batch.advantages is not None
    first, left_out, last = experience.batch.advantages[:, 0].tolist()
    assert left_out == 0.0
    assert first == pytest.approx(2**-0.5, rel=1e-5)
    assert last == pytest.approx(-(2**-0.5), rel=1e-5)


@pytest.mark.parametrize(("rewards", "scored"), [([1.0, 1.0, 1.0, None], 3), ([None] * 4, 0)])
def test_a_response_that_failed_is_no_reward_of_zero(rewards: list[float | None], scored: int) -> None:
    """ASYNC-06: equal rewards have no advantage, with a failed response among them or not."""
    batch = batch_of([2, 2, 2, 2], groups=[0, 0, 0, 0])
    experience = make_experience(batch, rewards=rewards, settings=experience_settings("grpo"), kl_coef=0.0)
    assert experience.scored.sum() == experience.batch.response_mask.any(dim=1).sum() == scored
    assert experience.batch.advantages is not None
    assert not experience.batch.advantages.any()


def test_a_response_without_a_reward_does_not_shift_whitened_advantages() -> None:
    """A-REW-07 under PPO: the others come out as if it had not been there."""
    settings = experience_settings("ppo", kl_in_reward="k1")
    batch = batch_of([2, 3, 4]).with_(ref_logprobs=torch.full((3, 4), -1.5))
    with_it = make_experience(batch, rewards=[1.0, None, 0.5], settings=settings, kl_coef=0.1)
    without = make_experience(batch.select([0, 2]), rewards=[1.0, 0.5], settings=settings, kl_coef=0.1)
    assert with_it.batch.advantages is not None
    assert without.batch.advantages is not None
    assert with_it.batch.advantages[1].tolist() == [0.0] * 4
    torch.testing.assert_close(with_it.batch.advantages[[0, 2]], without.batch.advantages)
    assert with_it.reward_kl == without.reward_kl


def test_no_rewards_at_all_are_finite_zeros() -> None:
    """A-ALG-13"""
    settings = experience_settings("ppo", kl_in_reward="k3")
    experience = make_experience(batch_of([2, 3]), rewards=[None, None], settings=settings, kl_coef=0.1)
    assert experience.batch.advantages is not None
    assert experience.batch.advantages.abs().sum() == 0.0
    assert not experience.batch.response_mask.any()
    assert experience.reward_kl == 0.0


def test_the_greedy_response_of_each_prompt_is_the_baseline_of_its_group() -> None:
    batch = batch_of([2, 2, 2], groups=[0, 1, 1])
    settings = experience_settings("remax")
    experience = make_experience(batch, rewards=[1.0, 0.0, 1.0], settings=settings, greedy_rewards=[0.25, 1.0])
    assert experience.batch.advantages is not None
    assert experience.batch.advantages.tolist() == [[0.75, 0.75], [-1.0, -1.0], [0.0, 0.0]]


def test_a_prompt_whose_greedy_response_has_no_reward_is_left_out() -> None:
    """A-REW-07 under ReMax."""
    batch = batch_of([2, 2, 2], groups=[0, 1, 1])
    settings = experience_settings("remax")
    experience = make_experience(batch, rewards=[1.0, 0.5, 1.0], settings=settings, greedy_rewards=[0.25, None])
    assert experience.scored.tolist() == [True, False, False]
    assert experience.batch.response_mask.any(dim=1).tolist() == [True, False, False]


def test_the_cost_stands_on_the_last_token_and_has_returns_of_its_own() -> None:
    """Worked by hand: gamma and lambda 1, values 0, so an advantage is the reward-to-go."""
    batch = batch_of([1, 2]).with_(cost_values=torch.zeros(2, 2))
    settings = experience_settings("ppo_lagrangian", whiten_advantages=False)
    experience = make_experience(batch, rewards=[2.0, 1.0], settings=settings, costs=[1.0, 3.0], multiplier=1.0)
    assert experience.batch.costs is not None
    assert experience.batch.costs.tolist() == [1.0, 3.0]
    assert experience.batch.cost_returns is not None
    assert experience.batch.cost_returns.tolist() == [[1.0, 0.0], [3.0, 3.0]]
    assert experience.batch.returns is not None
    assert experience.batch.returns.tolist() == [[2.0, 0.0], [1.0, 1.0]]
    assert experience.batch.advantages is not None
    assert experience.batch.advantages.tolist() == [[0.5, 0.0], [-1.0, -1.0]]


def test_a_response_without_a_cost_is_left_out() -> None:
    """A-REW-07 for the cost."""
    batch = batch_of([2, 2]).with_(cost_values=torch.zeros(2, 2))
    settings = experience_settings("ppo_lagrangian")
    experience = make_experience(batch, rewards=[1.0, 1.0], settings=settings, costs=[None, 0.5])
    assert experience.scored.tolist() == [False, True]
    assert experience.batch.cost_returns is not None
    assert experience.batch.cost_returns[0].tolist() == [0.0, 0.0]


def test_tokens_of_a_draw_weigh_their_draw_times_their_truncated_ratio() -> None:
    """A loop in float64 over the tokens of a group that was drawn again; the loss multiplies by these weights."""
    generator = torch.Generator().manual_seed(0)
    batch = batch_of([3, 1, 4], groups=[0, 0, 0])
    old, rollout = (torch.randn(3, 4, generator=generator) for _ in range(2))
    of_draw = torch.tensor([0.25, 1.0, 0.5])[:, None] * batch.response_mask
    batch = batch.with_(old_logprobs=old, rollout_logprobs=rollout, weights=of_draw)
    off_policy = OffPolicyConfig(importance="token", truncate=2.0)
    settings = experience_settings("grpo", off_policy=off_policy)

    weights = make_experience(batch, rewards=[1.0, 0.0, 2.0], settings=settings).batch.weights

    assert weights is not None
    expected = [
        [
            float(of_draw[row, t]) * min(2.0, math.exp(float(old[row, t]) - float(rollout[row, t])))
            if batch.response_mask[row, t]
            else 0.0
            for t in range(4)
        ]
        for row in range(3)
    ]
    assert max(map(max, expected)) > 0
    assert weights.tolist() == [pytest.approx(row, rel=1e-6) for row in expected]


def test_parts_of_a_reward_are_compared_by_themselves() -> None:
    """Both parts have the same spread after the comparison, whatever their size."""
    batch = batch_of([1, 1, 1, 1], groups=[0, 0, 1, 1])
    parts = RewardParts(
        values={"right": [1.0, 0.0, 0.0, 1.0], "short": [100.0, 0.0, 100.0, 0.0]}, weights={"right": 1.0, "short": 1.0}
    )
    experience = make_experience(
        batch, rewards=[101.0, 0.0, 100.0, 1.0], settings=experience_settings("gdpo"), parts=parts
    )
    assert experience.batch.advantages is not None
    advantages = experience.batch.advantages[:, 0]
    torch.testing.assert_close(advantages, torch.tensor([1.0, -1.0, 0.0, 0.0]) * 1.5**0.5, rtol=1e-3, atol=1e-4)
