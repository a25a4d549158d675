"""The terms of a reward: built-in functions run in this process, functions that may hang in processes of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from rl_compat.config.types import RewardConfig
from rl_compat.errors import RewardError
from rl_compat.rewards.builtin.answers import after_thoughts, thought_markers
from rl_compat.rewards.builtin.table import Builtin, find_builtin
from rl_compat.rewards.processes.custom import Call, bind_function, split_spec
from rl_compat.rewards.processes.timeouts import FunctionProcesses
from rl_compat.rewards.types import OnError, RewardOutcome, ScoreRequest

BUILTIN_SECONDS = 5.0
"time limit per response for a built-in reward that may hang; `reward.timeout_seconds` can only lower it"


class Part(ABC):
    """One term of a reward."""

    name: str
    arguments: tuple[str, ...] = ()
    "names of the user's arguments that it accepts"
    needs_correct = False
    "whether it uses the correctness judged by the other terms"
    judges_alone = False
    "whether the outcome of a response does not depend on the requests next to it"

    @abstractmethod
    def outcomes(self, requests: Sequence[ScoreRequest]) -> list[RewardOutcome]:
        """One outcome per request, in order."""

    def close(self) -> None:  # noqa: B027
        """End its processes and free its memory."""


class BuiltinPart(Part):
    """A built-in reward in this process."""

    judges_alone = True

    def __init__(self, name: str, builtin: Builtin, config: RewardConfig, *, max_response_length: int | None) -> None:
        self.name = name
        self.arguments = builtin.arguments
        self.needs_correct = "correct" in builtin.given
        self._builtin = builtin
        self._bound = builtin.bind(name, config.function_arguments)
        self._thoughts = () if builtin.reads_thoughts else thought_markers(config.thinking)
        self._max_response_length = max_response_length

    def outcomes(self, requests: Sequence[ScoreRequest]) -> list[RewardOutcome]:
        return [
            self._builtin.function(
                after_thoughts(request.response_text, request.prompt.text, thoughts=self._thoughts),
                request.prompt.ground_truth,
                **self._bound,
                **self._given(request),
            )
            for request in requests
        ]

    def _given(self, request: ScoreRequest) -> dict[str, Any]:
        values = {
            "prompt_text": request.prompt.text,
            "response_ids": request.response_ids,
            "max_response_length": self._max_response_length,
            "correct": request.correct,
        }
        given = {name: values[name] for name in self._builtin.given if values[name] is not None}
        for name in self._builtin.needed:
            if name not in given:
                raise RewardError(f"the reward `{self.name}` for row {request.prompt.row} {_WITHOUT[name]}")
        return given


_WITHOUT = {
    "correct": "needs a function in `reward.functions` that judges correctness, and none does",
    "response_ids": "needs the tokens of the response, and only its text is known",
    "max_response_length": "needs `data.max_response_length`, which is not set",
}


class ProcessPart(Part):
    """A function in processes that can be killed: a custom function, or a built-in reward that may hang."""

    def __init__(
        self,
        name: str,
        processes: FunctionProcesses,
        *,
        arguments: tuple[str, ...],
        on_error: OnError,
        wrong: float | None = None,
        thoughts: Sequence[tuple[str, str]] = (),
    ) -> None:
        """A response over the time limit gets the reward `wrong` and is counted; it is a failure if that is None.

        The function sees what follows the `thoughts` of a response.
        """
        self.name = name
        self._on_error = on_error
        self.arguments = arguments
        self.judges_alone = not processes.is_batched
        self._processes = processes
        self._wrong = wrong
        self._thoughts = thoughts

    def outcomes(self, requests: Sequence[ScoreRequest]) -> list[RewardOutcome]:
        calls = [_call(request, self._thoughts) for request in requests]
        outcomes = self._processes.outcomes(
            calls, stops=lambda outcome: self._wrong is None and outcome.stops(self._on_error)
        )
        return [self._scored(outcome) for outcome in outcomes]

    def close(self) -> None:
        self._processes.close()

    def _scored(self, outcome: RewardOutcome) -> RewardOutcome:
        stopped = outcome.failure is not None and outcome.failure.kind in ("timeout", "died")
        return replace(outcome, reward=self._wrong, correct=False) if stopped and self._wrong is not None else outcome


class CallablePart(Part):
    """A function given from Python, called in this process without a time limit."""

    def __init__(self, name: str, function: Callable[..., Any], config: RewardConfig) -> None:
        self.name = name
        self._function = bind_function(function, name, config.function_arguments)
        self._on_error = config.on_error
        self.arguments = tuple(self._function.arguments)
        self.judges_alone = not self._function.batched

    def outcomes(self, requests: Sequence[ScoreRequest]) -> list[RewardOutcome]:
        calls = [_call(request) for request in requests]
        if self._function.batched:
            return self._function.score_batch(calls)
        outcomes: list[RewardOutcome] = []
        for call in calls:
            outcomes.append(self._function.score(call))
            if outcomes[-1].stops(self._on_error):
                return [outcomes[-1]] * len(calls)
        return outcomes


def function_part(
    spec: str,
    name: str,
    config: RewardConfig,
    *,
    max_response_length: int | None,
    callables: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> Part:
    """The term for a built-in name, a `file.py:function` or a function given from Python under the name `spec`.

    Raises ConfigError if it cannot be used.
    """
    if spec in callables:
        return CallablePart(name, callables[spec], config)
    start = partial(FunctionProcesses, arguments=config.function_arguments, num_processes=config.num_processes)
    if ".py" in spec:
        file, function = split_spec(spec)
        processes = start(file, function, timeout_seconds=config.timeout_seconds)
        return ProcessPart(name, processes, arguments=processes.arguments, on_error=config.on_error)
    builtin = find_builtin(spec)
    if builtin.timed:
        builtin.bind(spec, config.function_arguments)
        processes = start(None, spec, timeout_seconds=min(config.timeout_seconds, BUILTIN_SECONDS))
        return ProcessPart(
            spec,
            processes,
            arguments=builtin.arguments,
            on_error=config.on_error,
            wrong=builtin.wrong,
            thoughts=() if builtin.reads_thoughts else thought_markers(config.thinking),
        )
    return BuiltinPart(spec, builtin, config, max_response_length=max_response_length)


def _call(request: ScoreRequest, thoughts: Sequence[tuple[str, str]] = ()) -> Call:
    prompt = request.prompt
    return Call(
        row=prompt.row,
        data_source=prompt.data_source,
        solution_str=after_thoughts(request.response_text, prompt.text, thoughts=thoughts),
        ground_truth=prompt.ground_truth,
        extra_info=dict(prompt.extra_info),
        response_length=None if request.response_ids is None else len(request.response_ids),
        response_ids=request.response_ids,
        messages=prompt.messages,
    )
