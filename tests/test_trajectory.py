from __future__ import annotations

import dataclasses

import pytest

from rl_compat.trajectory import Prompt, Trajectory


def test_a_trajectory_has_one_logprob_per_response_token() -> None:
    prompt = Prompt(token_ids=(1, 2), text="ab")
    kept = Trajectory(prompt=prompt, group=0, response_ids=(3, 4), rollout_logprobs=(-0.5, -1.0), finish_reason="stop")
    assert (kept.policy_versions, kept.response_mask) == ((), ())
    with pytest.raises(AssertionError):
        dataclasses.replace(kept, rollout_logprobs=(-0.5,))


def test_an_empty_response_is_a_trajectory() -> None:
    prompt = Prompt(token_ids=(1,), text="a")
    empty = Trajectory(prompt=prompt, group=0, response_ids=(), rollout_logprobs=(), finish_reason="length")
    assert len(empty.response_ids) == 0


def test_records_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Prompt(token_ids=(1,), text="a").row = 3  # type: ignore[misc]
