"""A batch is corrected for its sampler before anything is made from it."""

from __future__ import annotations

import pytest
import torch
from fakes.part_settings import experience_settings
from objectives.test_experience import batch_of

from rl_compat.batch import Batch
from rl_compat.config.types import OffPolicyConfig, VTraceConfig
from rl_compat.objectives.experience import correct, make_experience


def batch() -> Batch:
    """Two responses of two tokens: ratios 2 and 1, then 1/2 and 4."""
    plain = batch_of([2, 2], groups=[0, 0])
    ratios = torch.tensor([[2.0, 1.0], [0.5, 4.0]])
    rollout = torch.full((2, 2), -2.0)
    return plain.with_(rollout_logprobs=rollout, old_logprobs=rollout + ratios.log())


def test_weights_are_ratios_cut_at_the_bound() -> None:
    corrected, metrics = correct(batch(), OffPolicyConfig(importance="token", truncate=2.0))

    assert corrected.weights is not None
    torch.testing.assert_close(corrected.weights, torch.tensor([[2.0, 1.0], [0.5, 2.0]]))
    assert torch.equal(corrected.response_mask, batch().response_mask)
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(1.375)


def test_ratios_multiply_the_weights_that_a_batch_has() -> None:
    weighted = batch().with_(weights=torch.tensor([[0.5, 0.5], [1.0, 1.0]]))

    corrected, _ = correct(weighted, OffPolicyConfig(importance="token", truncate=2.0))

    assert corrected.weights is not None
    torch.testing.assert_close(corrected.weights, torch.tensor([[1.0, 0.5], [0.5, 2.0]]))


def test_a_rejected_token_leaves_the_mask_and_keeps_its_weight() -> None:
    corrected, _ = correct(batch(), OffPolicyConfig(importance="token", reject=("token_k1:0.25_2.5",)))

    assert corrected.response_mask.tolist() == [[True, True], [True, False]]
    assert corrected.weights is not None
    torch.testing.assert_close(corrected.weights[1], torch.tensor([0.5, 4.0]))


def test_the_reward_of_a_response_whose_last_token_is_rejected_stands_on_the_token_before() -> None:
    settings = experience_settings("rloo", off_policy=OffPolicyConfig(reject=("token_k1:0.25_2.5",)))

    experience = make_experience(batch(), rewards=[1.0, 3.0], settings=settings)

    assert experience.batch.token_rewards is not None
    assert experience.batch.token_rewards.tolist() == [[0.0, 1.0], [3.0, 0.0]]
    assert experience.batch.advantages is not None
    assert experience.batch.advantages.tolist() == [[-2.0, -2.0], [2.0, 0.0]]
    assert "rollout_corr/rollout_rs_masked_fraction" in experience.metrics


def test_a_response_without_a_reward_moves_no_weight() -> None:
    """A-REW-07: with the batch's mean as divisor."""
    settings = experience_settings("rloo", off_policy=OffPolicyConfig(importance="token", normalize=True))

    experience = make_experience(batch(), rewards=[1.0, None], settings=settings)

    assert experience.batch.weights is not None
    torch.testing.assert_close(experience.batch.weights[0], torch.tensor([2.0, 1.0]) / 1.5)


def test_under_bypass_the_experience_is_left_to_the_update() -> None:
    off_policy = OffPolicyConfig(importance="token", bypass=True)

    experience = make_experience(
        batch(), rewards=[1.0, 3.0], settings=experience_settings("rloo", off_policy=off_policy)
    )

    assert experience.batch.weights is None
    assert experience.metrics == {}


def test_v_trace_returns_take_the_place_of_those_of_gae() -> None:
    """Worked by hand: one response, gamma and lambda 1, ratios 1/2 and 4 held at 1, values 1 and 2, reward 3.

    The last token: delta = 3 - 2 = 1, so v = 3. The first: rho = c = 1/2, delta = (2 - 1) / 2, v = 1 + 1/2 + 1/2 = 2,
    and its advantage is (3 - 1) / 2.
    """
    one = batch().select([1]).with_(values=torch.tensor([[1.0, 2.0]]))
    vtrace = OffPolicyConfig(vtrace=VTraceConfig(enabled=True))
    settings = experience_settings("ppo", whiten_advantages=False, off_policy=vtrace)

    experience = make_experience(one, rewards=[3.0], settings=settings)

    assert experience.batch.returns is not None
    assert experience.batch.advantages is not None
    torch.testing.assert_close(experience.batch.returns, torch.tensor([[2.0, 3.0]]))
    torch.testing.assert_close(experience.batch.advantages, torch.tensor([[1.0, 1.0]]))
