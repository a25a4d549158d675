"""What goes into a reward function and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rl_compat.trajectory import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """One response to be scored."""

    response_text: str
    "special tokens removed"
    prompt: Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a function gave no usable reward for a response."""

    kind: Literal["timeout", "error", "misuse"]
    "`misuse` is a value of the wrong kind: it stops the run whatever `reward.on_error` says"
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one function said about one response."""

    reward: float | None
    "None when the function failed"
    correct: bool | None = None
    "None for a function that does not judge correctness"
    answer_found: bool | None = None
    "None for a function that reads no answer"
    extras: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The rewards of a step, in the order of its requests."""

    rewards: tuple[float | None, ...]
    "weighted sums; None is a response that is left out of the update (`reward.on_error=skip`)"
    components: Mapping[str, tuple[float | None, ...]]
    "by function, before its weight"
    correct: tuple[bool | None, ...]
    "by the first function that judges correctness; a custom one does so with the key `acc`"
    extras: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    "other values that functions returned, None where one returned nothing under that name"
    metrics: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    "sentences a person should see"
