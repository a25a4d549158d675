"""The reward of a run: named functions, their weights, and what happens when one fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rl_compat.config.types import RewardConfig
from rl_compat.errors import ConfigError, RewardError
from rl_compat.rewards.builtin import AUTO, check_sources
from rl_compat.rewards.parts import Part, make_parts
from rl_compat.rewards.types import Outcome, ScoreRequest, Scores

__all__ = ["ScoreRequest", "Scorer", "Scores", "build_scorer"]


def build_scorer(config: RewardConfig, *, data_sources: Iterable[str]) -> Scorer:
    """The scorer of a run; custom functions are loaded, each in a process of its own.

    Raises ConfigError for a name, file, function or weight that cannot be used, and DataError for a data source that
    `auto` does not know.
    """
    weights = _weights(config)
    check_sources(data_sources, config.functions)
    return Scorer(make_parts(config), weights=weights, on_error=config.on_error)


class Scorer:
    """Scores responses with a weighted sum of functions."""

    def __init__(
        self, parts: Sequence[Part], *, weights: Sequence[float], on_error: Literal["stop", "zero", "skip"]
    ) -> None:
        self._parts = tuple(parts)
        self._weights = tuple(weights)
        self._on_error = on_error
        self._said_no_answer = False

    def score(self, requests: Sequence[ScoreRequest]) -> Scores:
        """Rewards in the order of the requests. Raises RewardError when a function fails and `on_error` is `stop`."""
        by_part = {part.name: part.outcomes(requests) for part in self._parts}
        for outcomes in by_part.values():
            self._stop_on_failure(outcomes)
        components = {name: tuple(map(self._component, outcomes)) for name, outcomes in by_part.items()}
        rewards = tuple(self._sum(row) for row in zip(*components.values(), strict=True))
        rows = list(zip(*by_part.values(), strict=True))
        return Scores(
            rewards=rewards,
            components=components,
            correct=tuple(_first(outcome.correct for outcome in row) for row in rows),
            extras=_extras(by_part, len(requests)),
            metrics=_metrics(rewards, components, rows),
            notes=(*self._failure_notes(by_part), *self._no_answer_notes(by_part)),
        )

    def close(self) -> None:
        """End the processes of custom functions."""
        for part in self._parts:
            part.close()

    def _stop_on_failure(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            failure = outcome.failure
            if failure is None or (failure.kind != "misuse" and self._on_error != "stop"):
                continue
            hint = "a reward function returns a number, or a dict with `score`"
            if failure.kind != "misuse":
                hint = "mend the function, or go on with `reward.on_error=zero` or `reward.on_error=skip`"
            raise RewardError(failure.message, hint=hint)

    def _component(self, outcome: Outcome) -> float | None:
        if outcome.failure is None:
            return outcome.reward
        return 0.0 if self._on_error == "zero" else None

    def _sum(self, values: Sequence[float | None]) -> float | None:
        total = 0.0
        for weight, value in zip(self._weights, values, strict=True):
            if value is None:
                return None
            total += weight * value
        return total

    def _failure_notes(self, by_part: Mapping[str, Sequence[Outcome]]) -> tuple[str, ...]:
        messages = [o.failure.message for outcomes in by_part.values() for o in outcomes if o.failure is not None]
        if not messages:
            return ()
        done = "scored 0" if self._on_error == "zero" else "left out of the update"
        times = "time" if len(messages) == 1 else "times"
        return (f"a reward function failed {len(messages)} {times}, {done}: {messages[0]}",)

    def _no_answer_notes(self, by_part: Mapping[str, Sequence[Outcome]]) -> tuple[str, ...]:
        """Said once in a run: a strict rule that finds nothing looks like a model that cannot do the task."""
        outcomes = by_part.get("gsm8k_strict", ())
        if self._said_no_answer or not outcomes or any(outcome.answer_found for outcome in outcomes):
            return ()
        self._said_no_answer = True
        none = f"`gsm8k_strict` found no answer `#### <number>` in {len(outcomes)} of {len(outcomes)} responses"
        return (f"{none}, so all its rewards are 0: `reward.functions=gsm8k` also reads answers in other forms",)


def _weights(config: RewardConfig) -> tuple[float, ...]:
    if not config.functions:
        raise ConfigError("`reward.functions` is empty", hint=f"name at least one, for example `{AUTO}`")
    weights = config.weights or (1.0,) * len(config.functions)
    if len(weights) != len(config.functions):
        raise ConfigError(
            f"`reward.weights` has {len(weights)} values and `reward.functions` has {len(config.functions)}",
            hint="give one weight per function, or none",
        )
    return weights


def _first(values: Iterable[bool | None]) -> bool | None:
    return next((value for value in values if value is not None), None)


def _extras(by_part: Mapping[str, Sequence[Outcome]], num_requests: int) -> dict[str, tuple[Any, ...]]:
    """Extra values by key; a key that an earlier function has already used becomes `function.key`."""
    extras: dict[str, tuple[Any, ...]] = {}
    for name, outcomes in by_part.items():
        for key in dict.fromkeys(key for outcome in outcomes for key in outcome.extras):
            column = tuple(outcome.extras.get(key) for outcome in outcomes)
            assert len(column) == num_requests
            extras[key if key not in extras else f"{name}.{key}"] = column
    return extras


def _metrics(
    rewards: Sequence[float | None],
    components: Mapping[str, Sequence[float | None]],
    rows: Sequence[Sequence[Outcome]],
) -> dict[str, float]:
    """Counts of what went wrong, the mean of each function, and the fraction of responses without an answer."""
    kinds = [outcome.failure.kind for row in rows for outcome in row if outcome.failure is not None]
    found = [answer for row in rows if (answer := _first(outcome.answer_found for outcome in row)) is not None]
    metrics = {
        "reward/timeouts": float(kinds.count("timeout")),
        "reward/errors": float(len(kinds) - kinds.count("timeout")),
        "reward/unscored": float(sum(reward is None for reward in rewards)),
    }
    for name, values in components.items():
        scored = [value for value in values if value is not None]
        if scored:
            metrics[f"reward/{name}"] = sum(scored) / len(scored)
    if found:
        metrics["reward/no_answer_fraction"] = found.count(False) / len(found)
    return metrics
