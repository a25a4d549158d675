"""The reward of a run: a weighted sum of functions, and what happens if one fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from rl_compat.config.types import RewardConfig
from rl_compat.errors import ConfigError, RewardError
from rl_compat.rewards.assemble import AutoPart, make_parts
from rl_compat.rewards.builtin.table import AUTO, BUILTINS
from rl_compat.rewards.checks import check_sources
from rl_compat.rewards.parts import Part
from rl_compat.rewards.types import OnError, RewardOutcome, ScoreRequest, Scores

__all__ = ["ScoreRequest", "Scorer", "Scores", "build_scorer"]


def build_scorer(
    config: RewardConfig,
    *,
    data_sources: Iterable[str],
    max_response_length: int | None = None,
    learned: Part | None = None,
    callables: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> Scorer:
    """The scorer of a run. Functions that may hang are loaded in processes of their own.

    `callables` are functions given from Python, by the name that `reward.functions` lists.
    `max_response_length` (tokens) is used by the overlong penalty and `cosine_length`. `learned` is the reward model of
    `reward.model`. Raises ConfigError if a name, file, function or weight cannot be used, and DataError if `auto` does
    not know a data source.
    """
    sources = sorted(set(data_sources))
    weights = list(_weights(config))
    check_sources(sources, config.functions, config.sources)
    if config.sources and AUTO not in config.functions:
        raise ConfigError(
            "`reward.sources` is used by `auto`, and `reward.functions` does not contain `auto`",
            hint="set `reward.functions=auto`, or remove `reward.sources`",
        )
    parts = make_parts(config, data_sources=sources, max_response_length=max_response_length, callables=callables)
    weights += [config.overlong_penalty] * (len(parts) - len(weights))
    weights += [config.model_weight] if learned is not None else []
    return Scorer(parts, weights=weights, on_error=config.on_error, learned=learned)


@dataclass(slots=True, eq=False)
class EarlyOutcomes:
    """Outcomes of responses that are scored as they end, before all of them have."""

    waiting: deque[tuple[int, Callable[[], ScoreRequest]]] = field(default_factory=deque)
    "responses that have ended, by their place; any thread may add to them"
    by_place: dict[int, dict[str, RewardOutcome]] = field(default_factory=dict)
    "by function"
    scorer: Scorer | None = None
    "that found them"
    is_over: bool = False
    "the rest is scored when all have ended"


class Scorer:
    """Scores responses with a weighted sum of functions."""

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        weights: Sequence[float],
        on_error: OnError,
        learned: Part | None = None,
    ) -> None:
        """`weights` holds one weight per part and, last, that of the reward model."""
        self._parts = (*parts, *([] if learned is None else [learned]))
        self._learned = learned
        self._weights = tuple(weights)
        self._on_error = on_error
        self._said: set[str] = set()

    def score_early(self, early: EarlyOutcomes) -> None:
        """Call the functions that judge each response alone for those that wait, and keep the outcomes for `score`.

        After an error, a time-out or an outcome that ends the run nothing more is scored early; `score` meets it again.
        """
        parts = [part for part in self._parts if part.judges_alone and not part.needs_correct]
        early.scorer = early.scorer or self
        while parts and early.waiting and early.scorer is self and not early.is_over:
            places, make = zip(*(early.waiting.popleft() for _ in range(len(early.waiting))), strict=True)
            try:
                requests = [request() for request in make]
                by_part = {part.name: part.outcomes(requests) for part in parts}
            except Exception:
                early.is_over = True
                return
            failed = [outcome for outcomes in by_part.values() for outcome in outcomes if outcome.failure is not None]
            early.is_over = bool(failed)
            if not any(outcome.stops(self._on_error) for outcome in failed):
                for row, place in enumerate(places):
                    early.by_place[place] = {name: outcomes[row] for name, outcomes in by_part.items()}

    def score(self, requests: Sequence[ScoreRequest], early: EarlyOutcomes | None = None) -> Scores:
        """The rewards in the order of the requests. Raises RewardError if a function fails and `on_error` is `stop`.

        Functions are not called for what `early` has.
        """
        by_part = self._outcomes(requests, early.by_place if early is not None and early.scorer is self else {})
        otherwise = 0.0 if self._on_error == "zero" else None
        components = {
            name: tuple(otherwise if outcome.reward is None else outcome.reward for outcome in outcomes)
            for name, outcomes in by_part.items()
        }
        rewards = tuple(self._sum(row) for row in zip(*components.values(), strict=True))
        rows = list(zip(*by_part.values(), strict=True))
        scores = Scores(
            rewards=rewards,
            components=components,
            correct=tuple(_first(outcome.correct for outcome in row) for row in rows),
            extras=_extras(by_part, len(requests)),
            weights=dict(zip(components, self._weights, strict=True)),
            notes=(*self._failure_notes(by_part), *self._no_answer_notes(by_part)),
            binary=tuple(name for name, outcomes in by_part.items() if all(map(_is_judgement, outcomes))),
        )
        return replace(scores, metrics=_metrics(scores, rows))

    def close(self) -> None:
        """End the processes of the functions. The reward model is closed by its owner."""
        for part in self._parts:
            if part is not self._learned:
                part.close()

    def _outcomes(
        self, requests: Sequence[ScoreRequest], early: Mapping[int, Mapping[str, RewardOutcome]]
    ) -> dict[str, list[RewardOutcome]]:
        """The outcomes by function, in order. Functions that use correctness run after those that judge it."""
        done = {part.name: self._rest(part, requests, early) for part in self._parts if not part.needs_correct}
        judged = [_first(outcome.correct for outcome in row) for row in zip(*done.values(), strict=True)]
        known = [
            replace(request, correct=correct)
            for request, correct in zip(requests, judged or [None] * len(requests), strict=True)
        ]
        done |= {part.name: self._run(part, known) for part in self._parts if part.needs_correct}
        return {part.name: done[part.name] for part in self._parts}

    def _rest(
        self, part: Part, requests: Sequence[ScoreRequest], early: Mapping[int, Mapping[str, RewardOutcome]]
    ) -> list[RewardOutcome]:
        """The outcomes of a part, which is called for those that are not there yet."""
        found = {place: outcomes[part.name] for place, outcomes in early.items() if part.name in outcomes}
        missing = [place for place in range(len(requests)) if place not in found]
        if missing:
            found |= zip(missing, self._run(part, [requests[place] for place in missing]), strict=True)
        return [found[place] for place in range(len(requests))]

    def _run(self, part: Part, requests: Sequence[ScoreRequest]) -> list[RewardOutcome]:
        """The outcomes of a part. Raises RewardError if one of them ends the run."""
        outcomes = part.outcomes(requests)
        failure = next((outcome.failure for outcome in outcomes if outcome.stops(self._on_error)), None)
        if failure is None:
            return outcomes
        if failure.kind == "misuse":
            hint = "a reward function returns a number, or a dict with `score`"
        else:
            more = ", raise `reward.timeout_seconds`" if failure.kind == "timeout" else ""
            hint = f"fix the function{more}, or continue with `reward.on_error=zero` or `reward.on_error=skip`"
        raise RewardError(failure.message, hint=hint)

    def _sum(self, values: Sequence[float | None]) -> float | None:
        total = 0.0
        for weight, value in zip(self._weights, values, strict=True):
            if value is None:
                return None
            total += weight * value
        return total

    def _failure_notes(self, by_part: Mapping[str, Sequence[RewardOutcome]]) -> Iterator[str]:
        failed = [outcome for outcomes in by_part.values() for outcome in outcomes if outcome.failure is not None]
        lost = "scored 0" if self._on_error == "zero" else "left out of the update"
        for done, is_lost in ((lost, True), ("scored as wrong", False)):
            failures = [outcome.failure for outcome in failed if (outcome.reward is None) == is_lost]
            if failures and failures[0] is not None:
                times = "1 time" if len(failures) == 1 else f"{len(failures)} times"
                yield f"a reward function failed {times}, {done}: {failures[0].message}"

    def _no_answer_notes(self, by_part: Mapping[str, Sequence[RewardOutcome]]) -> tuple[str, ...]:
        """A note, once per function, if it found no answer at all: the format may be wrong and not the answers."""
        notes = []
        for name, outcomes in by_part.items():
            found = [outcome.answer_found for outcome in outcomes if outcome.answer_found is not None]
            if name in self._said or not found or any(found):
                continue
            self._said.add(name)
            notes.append(_no_answer_note(self._judges(name), len(found), len(outcomes)))
        return tuple(notes)

    def _judges(self, name: str) -> str:
        """The function that `auto` uses, if there is only one; else `name`."""
        for part in self._parts:
            if part.name == name and isinstance(part, AutoPart) and len(part.parts) == 1:
                return part.parts[0].name
        return name


def _weights(config: RewardConfig) -> tuple[float, ...]:
    if not config.functions and config.model is None:
        raise ConfigError("`reward.functions` is empty", hint=f"list at least one, for example `{AUTO}`")
    weights = config.weights or (1.0,) * len(config.functions)
    if len(weights) != len(config.functions):
        raise ConfigError(
            f"`reward.weights` has {len(weights)} values and `reward.functions` has {len(config.functions)}",
            hint="give one weight per function, or no weights",
        )
    return weights


def _is_judgement(outcome: RewardOutcome) -> bool:
    return outcome.failure is not None or (outcome.correct is not None and outcome.reward == float(outcome.correct))


def _no_answer_note(name: str, num_missing: int, num_responses: int) -> str:
    builtin = BUILTINS.get(name)
    form = f" {builtin.looks_for}" if builtin is not None and builtin.looks_for else ""
    none = f"`{name}` found no answer{form} in {num_missing} of {num_responses} responses"
    remedy = f": {builtin.remedy}" if builtin is not None and builtin.remedy else ""
    return f"{none}, so none of them can be correct{remedy}"


def _first(values: Iterable[bool | None]) -> bool | None:
    return next((value for value in values if value is not None), None)


def _extras(by_part: Mapping[str, Sequence[RewardOutcome]], num_requests: int) -> dict[str, tuple[Any, ...]]:
    """Extra values by key. A key that an earlier function uses too becomes `function.key`."""
    extras: dict[str, tuple[Any, ...]] = {}
    for name, outcomes in by_part.items():
        for key in dict.fromkeys(key for outcome in outcomes for key in outcome.extras):
            column = tuple(outcome.extras.get(key) for outcome in outcomes)
            assert len(column) == num_requests
            extras[key if key not in extras else f"{name}.{key}"] = column
    return extras


def _metrics(scores: Scores, rows: Sequence[Sequence[RewardOutcome]]) -> dict[str, float]:
    """Counts of failures, means of rewards and of extra numbers, and the fraction of responses without an answer."""
    kinds = [outcome.failure.kind for row in rows for outcome in row if outcome.failure is not None]
    found = [answer for row in rows if (answer := _first(outcome.answer_found for outcome in row)) is not None]
    metrics = {
        "reward/timeouts": float(kinds.count("timeout")),
        "reward/errors": float(len(kinds) - kinds.count("timeout")),
        "reward/unscored": float(sum(reward is None for reward in scores.rewards)),
    }
    for name, values in {**scores.numbers(), **scores.components}.items():
        known = [value for value in values if value is not None]
        if known:
            metrics[f"reward/{name}"] = sum(known) / len(known)
    if found:
        metrics["reward/no_answer_fraction"] = found.count(False) / len(found)
    return metrics
