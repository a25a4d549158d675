"""Responses and their rows are the same data."""

from __future__ import annotations

import torch
from fakes.responses import response, rows

from rl_compat.batch import Sequences
from rl_compat.replay.rows import Outcomes, to_sequences, to_table
from rl_compat.rewards.types import Scores
from rl_compat.trajectory import Prompt, Trajectory

PROMPT = Prompt(
    token_ids=(1, 2, 3), text="2 + 2", data_source="sums", ground_truth={"answer": 4}, row=11, extra_info={"seen": True}
)
TRAJECTORIES = (
    Trajectory(
        prompt=PROMPT,
        group=3,
        response_ids=(5, 6, 7),
        rollout_logprobs=(-0.1, -0.2, -0.3),
        finish_reason="stop",
        policy_versions=(4, 4, 5),
        response_mask=(True, False, True),
    ),
    Trajectory(prompt=PROMPT, group=3, response_ids=(), rollout_logprobs=(), finish_reason="abort", policy_versions=()),
    Trajectory(
        prompt=Prompt(token_ids=(9,), text="?", row=2),
        group=8,
        response_ids=(5,),
        rollout_logprobs=(-1.5,),
        finish_reason="length",
        policy_versions=(6,),
    ),
)


def test_sequences_come_back_from_their_rows() -> None:
    sequences = Sequences.from_trajectories(TRAJECTORIES, ("four", "", "?!"))
    outcomes = Outcomes(
        scores=Scores(
            rewards=(1.0, None, 0.25),
            components={"math": (1.0, 0.5, None)},
            correct=(True, False, None),
            extras={"length": (1.0, None, 3.0)},
        ),
        costs=[0.0, 1.0, 2.0],
        greedy_rewards=[0.5, 0.5, None],
    )

    table = to_table(sequences, outcomes, step=2)
    found, of_found = to_sequences(table)

    assert found.texts == sequences.texts
    for name in ("response_ids", "response_mask", "rollout_logprobs", "policy_versions", "groups", "truncated", "rows"):
        mine, others = getattr(found.batch, name), getattr(sequences.batch, name)
        assert mine.dtype == others.dtype and torch.equal(mine, others), name
    assert found.batch.prompt_ids == sequences.batch.prompt_ids
    assert found.trajectories[0].prompt == Prompt(
        token_ids=(1, 2, 3), text="2 + 2", data_source="sums", ground_truth={"answer": 4}, row=11
    )
    assert found.trajectories[1].prompt is found.trajectories[0].prompt
    assert [item.finish_reason for item in found.trajectories] == ["stop", "abort", "length"]
    assert of_found == outcomes
    assert table["step"].to_pylist() == [2, 2, 2]


def test_what_a_run_lacks_is_absent_from_its_rows() -> None:
    unknown = Trajectory(prompt=PROMPT, group=0, response_ids=(5,), rollout_logprobs=(-1.0,), finish_reason="stop")
    sequences, outcomes = to_sequences(rows(unknown, response(1, (6, 7))))

    assert sequences.batch.policy_versions is None
    assert (outcomes.costs, outcomes.greedy_rewards, outcomes.scores.components) == (None, None, {})
