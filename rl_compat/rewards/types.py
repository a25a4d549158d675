"""The inputs and results of reward functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rl_compat.errors import RewardError, did_you_mean, quoted
from rl_compat.trajectory import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """One response to score."""

    response_text: str
    "without special tokens"
    prompt: Prompt
    response_ids: tuple[int, ...] | None = None
    "as generated, including the end token; None if only the text is known"
    correct: bool | None = None
    "the verdict of the functions that judge correctness, for functions that use it"


OnError = Literal["stop", "zero", "skip"]
"`reward.on_error`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a function returned no usable reward for a response."""

    kind: Literal["timeout", "died", "error", "misuse"]
    "`died`: the process of the function ended; `misuse`: a value of the wrong type, which always stops the run"
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardOutcome:
    """The result of one function for one response."""

    reward: float | None
    "None if the function failed; a failure together with a reward is counted and reported but does not stop the run"
    correct: bool | None = None
    "None for a function that does not judge correctness"
    answer_found: bool | None = None
    "None for a function that does not look for an answer"
    extras: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None

    def stops(self, on_error: OnError) -> bool:
        """Whether it ends the run: a failure without a reward that `on_error` does not cover."""
        if self.failure is None or self.reward is not None:
            return False
        return on_error == "stop" or self.failure.kind == "misuse"


def judged(correct: bool, answer: str | None) -> RewardOutcome:
    """1 for a correct answer, else 0. `answer` is the text that was found, or None."""
    return RewardOutcome(
        reward=float(correct), correct=correct, answer_found=answer is not None, extras={"answer": answer}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The rewards of a step, in the order of its requests."""

    rewards: tuple[float | None, ...]
    "weighted sums; None for a response that is left out of the update (`reward.on_error=skip`)"
    components: Mapping[str, tuple[float | None, ...]]
    "rewards by function, before weighting"
    correct: tuple[bool | None, ...]
    "from the first function that judges correctness; a custom function does so with the key `acc`"
    extras: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    "other values returned by functions, None where a function did not return the key"
    weights: Mapping[str, float] = field(default_factory=dict)
    "by function"
    metrics: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    "messages for the user"
    binary: tuple[str, ...] = ()
    "functions that judge correctness and give 1 or 0 for it"

    def numbers(self) -> dict[str, tuple[float | None, ...]]:
        """The extras with numeric or boolean values, as floats."""
        found = {}
        for key, values in self.extras.items():
            given = [value for value in values if value is not None]
            if given and all(isinstance(value, (bool, int, float)) for value in given):
                found[key] = tuple(None if value is None else float(value) for value in values)
        return found

    def parts(self, names: Sequence[str] = ()) -> dict[str, tuple[float | None, ...]]:
        """Rewards by name for an algorithm that weights them itself: all functions, or the named functions and extras.

        A response that is left out of the update is None in every part. Raises RewardError for an unknown name.
        """
        known = {**self.numbers(), **self.components}
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known, "a function can return more numbers in its dict")
                raise RewardError(f"unknown reward `{name}`; known are {quoted(known)}", hint=hint)
        kept = [reward is not None for reward in self.rewards]
        return {
            name: tuple(value if keep else None for value, keep in zip(known[name], kept, strict=True))
            for name in (names or self.components)
        }


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
