"""Select and concatenate scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rl_compat.rewards.types import Scores

COUNTS = ("reward/timeouts", "reward/errors", "reward/unscored")


def pick_scores(scores: Scores, rows: Sequence[int]) -> Scores:
    """The scores of the given rows, in that order. Metrics and notes stay those of all rows."""
    return replace(
        scores,
        rewards=tuple(scores.rewards[row] for row in rows),
        correct=tuple(scores.correct[row] for row in rows),
        components=_picked(scores.components, rows),
        extras=_picked(scores.extras, rows),
    )


def join_scores(parts: Sequence[Scores]) -> Scores:
    """Concatenated scores. Metrics that are counts are summed, the others averaged over the rows."""
    first = parts[0]
    if len(parts) == 1:
        return first
    return replace(
        first,
        rewards=tuple(reward for part in parts for reward in part.rewards),
        correct=tuple(correct for part in parts for correct in part.correct),
        components=_joined([(part.components, len(part.rewards)) for part in parts]),
        extras=_joined([(part.extras, len(part.rewards)) for part in parts]),
        metrics=_metrics(parts),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _picked(columns: Mapping[str, tuple[Any, ...]], rows: Sequence[int]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(column[row] for row in rows) for name, column in columns.items()}


def _joined(parts: Sequence[tuple[Mapping[str, tuple[Any, ...]], int]]) -> dict[str, tuple[Any, ...]]:
    """The concatenated columns, with None where a part lacks a column."""
    names = dict.fromkeys(name for columns, _ in parts for name in columns)
    return {
        name: tuple(value for columns, num_rows in parts for value in columns.get(name, (None,) * num_rows))
        for name in names
    }


def _metrics(parts: Sequence[Scores]) -> dict[str, float]:
    merged = {}
    for name in dict.fromkeys(name for part in parts for name in part.metrics):
        given = [(part.metrics[name], len(part.rewards)) for part in parts if name in part.metrics]
        total = sum(value for value, _ in given)
        mean = sum(value * rows for value, rows in given) / sum(rows for _, rows in given)
        merged[name] = total if name in COUNTS else mean
    return merged
