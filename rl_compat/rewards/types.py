"""What goes into a reward function and what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rl_compat.errors import RewardError, nearest
from rl_compat.trajectory import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """One response to be scored."""

    response_text: str
    "special tokens removed"
    prompt: Prompt
    response_ids: tuple[int, ...] | None = None
    "as the policy produced them, the end token included; None where only the text is known"
    correct: bool | None = None
    "what the functions that judge correctness have said, for those that build on it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a function gave no usable reward for a response."""

    kind: Literal["timeout", "died", "error", "misuse"]
    "`died` is the process of the function; `misuse`, a value of the wrong kind, stops the run whatever `on_error` is"
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one function said about one response."""

    reward: float | None
    "None when the function failed; a failure beside a reward is counted and said, and stops nothing"
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
    weights: Mapping[str, float] = field(default_factory=dict)
    "by function"
    metrics: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    "sentences a person should see"

    def numbers(self) -> dict[str, tuple[float | None, ...]]:
        """The extras whose values are numbers or truth values, as numbers."""
        return {key: tuple(map(_number, values)) for key, values in self.extras.items() if _is_numeric(values)}

    def parts(self, names: Sequence[str] = ()) -> dict[str, tuple[float | None, ...]]:
        """Rewards by name for an algorithm that weighs them itself: all functions, or those and extras named.

        A response that is left out of the update is None in every part. Raises RewardError for an unknown name.
        """
        known = {**self.numbers(), **self.components}
        for name in names:
            if name not in known:
                close = nearest(name, known)
                raise RewardError(
                    f"no reward is called `{name}`: there are {', '.join(f'`{key}`' for key in known)}",
                    hint=f"did you mean `{close}`" if close else "a function's dict may hold more numbers by name",
                )
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
