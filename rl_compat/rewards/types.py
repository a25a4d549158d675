"""The inputs and results of reward functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

    def numbers(self) -> dict[str, tuple[float | None, ...]]:
        """The extras with numeric or boolean values, as floats."""
        return {key: tuple(map(_number, values)) for key, values in self.extras.items() if _is_numeric(values)}

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


def _is_numeric(values: Sequence[Any]) -> bool:
    given = [value for value in values if value is not None]
    return bool(given) and all(isinstance(value, (bool, int, float)) for value in given)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
