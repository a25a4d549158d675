"""Groups of responses for tests of the experience buffer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow

from rl_compat.batch import Sequences
from rl_compat.replay.rows import Outcomes, to_table
from rl_compat.rewards.types import Scores
from rl_compat.trajectory import Prompt, Trajectory


def response(group: int, ids: Sequence[int], *, row: int | None = None, version: int = 0) -> Trajectory:
    """A response that ended, with log-probabilities that follow from its place."""
    return Trajectory(
        prompt=Prompt(token_ids=(7, 8, 9), text=f"prompt {group}", row=group if row is None else row),
        group=group,
        response_ids=tuple(ids),
        rollout_logprobs=tuple(-0.5 - position for position in range(len(ids))),
        finish_reason="stop",
        policy_versions=(version,) * len(ids),
    )


def rows(*trajectories: Trajectory, step: int = 1) -> pyarrow.Table:
    """Responses as rows; each has the reward 1."""
    sequences = Sequences.from_trajectories(trajectories, [str(item.response_ids) for item in trajectories])
    count = len(trajectories)
    scores = Scores(rewards=(1.0,) * count, components={}, correct=(None,) * count)
    return to_table(sequences, Outcomes(scores=scores), step=step)


def groups(*numbers: int, version: int = 0, size: int = 2) -> pyarrow.Table:
    """Groups of `size` different responses, unlike those of any other group."""
    return rows(
        *(response(number, (number, place), version=version) for number in numbers for place in range(size)),
        step=version + 1,
    )


def many_groups(first: int, count: int, *, tokens: int = 4) -> pyarrow.Table:
    """`count` groups of one response each, made without a loop."""
    offsets = pyarrow.array(np.arange(count + 1, dtype=np.int32) * tokens)
    ids = np.arange(first * tokens, (first + count) * tokens, dtype=np.int32)
    return pyarrow.table(
        {
            "group": np.arange(first, first + count),
            "row": np.zeros(count, dtype=np.int64),
            "response_ids": pyarrow.ListArray.from_arrays(offsets, pyarrow.array(ids)),
            "policy_versions": pyarrow.ListArray.from_arrays(offsets, pyarrow.array(np.zeros_like(ids))),
        }
    )
