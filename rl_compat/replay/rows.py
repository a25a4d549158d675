"""Responses as rows of an Arrow table, one row per response; the same columns in memory, in a checkpoint and on disk.

The rows of a group are next to each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import pyarrow
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_compat.batch import Sequences
from rl_compat.rewards.types import Scores
from rl_compat.trajectory import Prompt, Trajectory

COMPONENT = "reward/"
"prefix of the columns with the rewards by function"
NUMBER = "number/"
"prefix of the columns with other numbers that the reward functions returned"
Column = Sequence[float | None]
"one number per response; None where there is none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What scored some responses, in their order."""

    scores: Scores
    costs: Column | None = None
    greedy_rewards: Column | None = None
    "of the greedy response to the prompt of each response (ReMax)"


def to_table(sequences: Sequences, outcomes: Outcomes, *, step: int, trained: bool = True) -> pyarrow.Table:
    """The responses of a step, which trained on them or filtered them out, with their outcomes."""
    batch, trajectories, scores = sequences.batch, sequences.trajectories, outcomes.scores
    written = torch.arange(batch.response_ids.shape[1])[None] < batch.response_lengths[:, None]
    offsets = _offsets(batch.response_lengths.tolist())

    def tokens(values: Tensor | None, kind: pyarrow.DataType) -> pyarrow.Array:
        if values is None:
            return pyarrow.nulls(len(batch), pyarrow.list_(kind))
        return pyarrow.ListArray.from_arrays(offsets, pyarrow.array(values[written].numpy()).cast(kind))

    prompts = [item.prompt for item in trajectories]
    prompt_ids = pyarrow.array(chain.from_iterable(prompt.token_ids for prompt in prompts), pyarrow.int32())
    columns = {
        "step": pyarrow.array([step] * len(batch), pyarrow.int32()),
        "trained": pyarrow.array([trained] * len(batch)),
        "group": pyarrow.array(batch.groups.numpy()),
        "row": pyarrow.array([prompt.row for prompt in prompts], pyarrow.int64()),
        "data_source": pyarrow.array([prompt.data_source for prompt in prompts]),
        "prompt": pyarrow.array([prompt.text for prompt in prompts]),
        "response": pyarrow.array(sequences.texts, pyarrow.string()),
        "ground_truth": pyarrow.array([json.dumps(prompt.ground_truth, default=str) for prompt in prompts]),
        "finish_reason": pyarrow.array([item.finish_reason for item in trajectories]),
        "reward": _numbers(scores.rewards, len(batch)),
        "correct": pyarrow.array(scores.correct, pyarrow.bool_()),
        "cost": _numbers(outcomes.costs, len(batch)),
        "greedy_reward": _numbers(outcomes.greedy_rewards, len(batch)),
        **{f"{COMPONENT}{name}": _numbers(values, len(batch)) for name, values in scores.components.items()},
        **{f"{NUMBER}{name}": _numbers(values, len(batch)) for name, values in scores.numbers().items()},
        "prompt_ids": pyarrow.ListArray.from_arrays(_offsets([len(item.token_ids) for item in prompts]), prompt_ids),
        "response_ids": tokens(batch.response_ids, pyarrow.int32()),
        "response_mask": tokens(batch.response_mask, pyarrow.bool_()),
        "rollout_logprobs": tokens(batch.rollout_logprobs, pyarrow.float32()),
        "policy_versions": tokens(batch.policy_versions, pyarrow.int32()),
    }
    return pyarrow.table(columns)


def to_sequences(table: pyarrow.Table) -> tuple[Sequences, Outcomes]:
    """The responses of rows and their outcomes. Prompts have no tools, no messages and no extra_info, and scores have
    what depends on each response alone."""
    columns = {name: table[name].to_pylist() for name in table.column_names}
    prompts: dict[int, Prompt] = {}
    trajectories = []
    for index, group in enumerate(columns["group"]):
        if group not in prompts:
            prompts[group] = Prompt(
                token_ids=tuple(columns["prompt_ids"][index]),
                text=columns["prompt"][index],
                data_source=columns["data_source"][index],
                ground_truth=json.loads(columns["ground_truth"][index]),
                row=columns["row"][index],
            )
        trajectories.append(
            Trajectory(
                prompt=prompts[group],
                group=group,
                response_ids=tuple(columns["response_ids"][index]),
                rollout_logprobs=tuple(columns["rollout_logprobs"][index]),
                finish_reason=columns["finish_reason"][index],
                policy_versions=tuple(columns["policy_versions"][index] or ()),
                response_mask=tuple(columns["response_mask"][index]),
            )
        )
    costs, greedy = (None if table[name].null_count == len(table) else columns[name] for name in _OPTIONAL)
    components, numbers = (
        {name.removeprefix(prefix): tuple(columns[name]) for name in columns if name.startswith(prefix)}
        for prefix in (COMPONENT, NUMBER)
    )
    scores = Scores(
        rewards=tuple(columns["reward"]), correct=tuple(columns["correct"]), components=components, extras=numbers
    )
    outcomes = Outcomes(scores=scores, costs=costs, greedy_rewards=greedy)
    return Sequences.from_trajectories(trajectories, columns["response"]), outcomes


_OPTIONAL = ("cost", "greedy_reward")


def group_starts(table: pyarrow.Table) -> NDArray[np.int64]:
    """The first row of each group."""
    groups = table["group"].to_numpy()
    return np.flatnonzero(np.append(True, groups[1:] != groups[:-1])[: len(groups)])


def oldest_versions(table: pyarrow.Table, starts: NDArray[np.int64], *, otherwise: int) -> NDArray[np.int64]:
    """The oldest policy version among the tokens of each group, `otherwise` for a group without known versions."""
    versions = table["policy_versions"].combine_chunks()
    lengths = np.diff(versions.offsets.to_numpy())
    group_of_row = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(table))))
    oldest = np.full(len(starts), np.iinfo(np.int64).max)
    np.minimum.at(oldest, np.repeat(group_of_row, lengths), versions.flatten().to_numpy().astype(np.int64))
    return np.where(oldest == np.iinfo(np.int64).max, otherwise, oldest)


def response_bytes(table: pyarrow.Table) -> Iterator[bytes]:
    """The token ids of each response."""
    ids = table["response_ids"].combine_chunks()
    data, offsets = ids.values.to_numpy().tobytes(), (4 * ids.offsets.to_numpy()).tolist()
    return (data[first:last] for first, last in pairwise(offsets))


def _numbers(values: Column | None, count: int) -> pyarrow.Array:
    return pyarrow.nulls(count, pyarrow.float64()) if values is None else pyarrow.array(values, pyarrow.float64())


def _offsets(lengths: Sequence[int]) -> pyarrow.Array:
    return pyarrow.array(np.cumsum([0, *lengths], dtype=np.int32))
