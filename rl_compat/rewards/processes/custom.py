"""A custom reward function: loaded from a file or given from Python, and called with the keywords that it accepts.

What it returns becomes an outcome.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from rl_compat.errors import ConfigError, did_you_mean, quoted
from rl_compat.rewards.types import Failure, RewardOutcome

DEFAULT_FUNCTION = "compute_score"
COMPLETIONS = "completions"
BATCHED_FUNCTION = "compute_scores"
KEYWORDS = ("data_source", "solution_str", "ground_truth", "extra_info", "response_length")
SHOWN_CHARACTERS = 200
BATCHED_KEYWORDS = ("data_sources", "solution_strs", "ground_truths", "extra_infos", "response_lengths")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One response as a custom function sees it."""

    row: int
    data_source: str
    solution_str: str
    ground_truth: Any
    extra_info: dict[str, Any]
    response_length: int | None = None
    "tokens"
    response_ids: tuple[int, ...] | None = None
    messages: Any = None
    "the prompt before the chat template: text or chat messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomFunction:
    """A loaded function and how to call it.

    By default it is called once per response with the keywords `data_source`, `solution_str`, `ground_truth`,
    `extra_info` and `response_length`. A function named `compute_scores`, or with an attribute `batched = True`, is
    called once with lists of all responses and the plurals of these keywords. A function with a parameter `completions`
    is called like in TRL: with `completions`, `prompts`, `completion_ids` and the columns of the data as lists.
    """

    name: str
    file: Path | None
    "None for a function that was given from Python"
    function: Callable[..., Any]
    arguments: Mapping[str, str]
    accepted: tuple[str, ...]
    "the keywords of the run that it accepts"
    batched: bool
    concurrent: bool
    "a coroutine function: calls may overlap"
    by_columns: bool = False
    "accepts `completions` and the columns of the data"
    takes_all: bool = False
    "has `**kwargs`"

    def call(self, call: Call) -> Any:
        """The return value for one response, or an awaitable of it."""
        return self.function(**{key: getattr(call, key) for key in self.accepted}, **self.arguments)

    def call_batch(self, calls: Sequence[Call]) -> Any:
        """The return values for all responses, or an awaitable of them."""
        if self.by_columns:
            columns = _columns(calls)
            return self.function(
                **{name: values for name, values in columns.items() if self.takes_all or name in self.accepted},
                **self.arguments,
            )
        singular = dict(zip(BATCHED_KEYWORDS, KEYWORDS, strict=True))
        lists = {key: [getattr(call, singular[key]) for call in calls] for key in self.accepted}
        return self.function(**lists, **self.arguments)

    def outcome(self, value: Any, call: Call) -> RewardOutcome:
        """The outcome for a return value. A built-in reward returns outcomes itself."""
        return value if isinstance(value, RewardOutcome) else outcome_of(value, function=self.name, row=call.row)

    def outcomes(self, values: Any, calls: Sequence[Call]) -> list[RewardOutcome]:
        """One outcome per response. A list of another length is misuse."""
        values = values.tolist() if hasattr(values, "tolist") else values
        if not isinstance(values, (list, tuple)):
            got = f"returned {shown(values)}, expected a list of {len(calls)} rewards"
        elif len(values) != len(calls):
            got = f"returned {len(values)} rewards, expected {len(calls)}"
        else:
            return [self.outcome(value, call) for value, call in zip(values, calls, strict=True)]
        return [failed(f"`{self.name}` {got}", kind="misuse") for _ in calls]

    def crashed(self, error: BaseException, call: Call) -> RewardOutcome:
        """The outcome of a call that raised."""
        where = "" if self.file is None else line_in(error, self.file)
        return failed(f"`{self.name}` failed for row {call.row}: {type(error).__name__}: {error}{where}")

    def score(self, call: Call) -> RewardOutcome:
        """The outcome of one call; what the function raises becomes a failed outcome."""
        try:
            return self.outcome(awaited(self.call(call)), call)
        except (Exception, SystemExit) as error:
            return self.crashed(error, call)

    def score_batch(self, calls: Sequence[Call]) -> list[RewardOutcome]:
        """The outcomes of one call with all responses."""
        try:
            return self.outcomes(awaited(self.call_batch(calls)), calls)
        except (Exception, SystemExit) as error:
            return [self.crashed(error, call) for call in calls]


def awaited(value: Any) -> Any:
    """The value, or the result of an awaitable."""
    return asyncio.run(_await(value)) if inspect.isawaitable(value) else value


async def _await(value: Any) -> Any:
    return await value


def split_spec(spec: str) -> tuple[Path, str]:
    """The file and the function name of `file.py:function`; the name is `compute_score` if only a file is given.

    Raises ConfigError if the file does not exist.
    """
    path, colon, name = spec.rpartition(":")
    if not colon or spec.endswith(".py"):
        path, name = spec, DEFAULT_FUNCTION
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(
            f"the file `{path}` of the reward `{spec}` does not exist",
            hint="the path is relative to the current folder",
        )
    return file, name


def load_function(file: Path, name: str, arguments: Mapping[str, str]) -> CustomFunction:
    """Import the file and bind the function. Raises ConfigError if either cannot be used."""
    module = _import(file)
    function = getattr(module, name, None)
    if not callable(function):
        defined = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        hint = did_you_mean(name, defined, f"it defines {quoted(defined) or 'no functions'}")
        raise ConfigError(f"`{file}` has no function `{name}`", hint=hint)
    return bind_function(function, name, arguments, file=file)


def bind_function(
    function: Callable[..., Any], name: str, arguments: Mapping[str, str], *, file: Path | None = None
) -> CustomFunction:
    """A function with the keywords and arguments that it accepts. Raises ConfigError if it requires others."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(item.kind is item.VAR_KEYWORD for item in parameters)
    named = [item.name for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]
    by_columns = any(item.name == COMPLETIONS for item in parameters)
    batched = by_columns or name == BATCHED_FUNCTION or bool(getattr(function, "batched", False))
    given: Sequence[str] = BATCHED_KEYWORDS if batched else KEYWORDS
    if by_columns:
        given = [key for key in named if key not in arguments]
    required = [
        item
        for item in parameters
        if item.default is item.empty and item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)
    ]
    missing = [item.name for item in required if item.name not in named or item.name not in {*given, *arguments}]
    if missing:
        label = f"`{name}`" if file is None else f"`{name}` of `{file}`"
        raise ConfigError(
            f"{label} requires {quoted(missing)}, which the run does not pass",
            hint=f"functions are called with the keywords {', '.join(given)} and with `reward.function_arguments`",
        )
    return CustomFunction(
        name=name,
        file=file,
        function=function,
        arguments={key: value for key, value in arguments.items() if takes_all or key in named},
        accepted=tuple(key for key in given if takes_all or key in named),
        batched=batched,
        concurrent=inspect.iscoroutinefunction(function) and not batched,
        by_columns=by_columns,
        takes_all=takes_all,
    )


def line_in(error: BaseException, file: Path) -> str:
    """` (line 12 of `rewards.py`)` for the innermost line of the user's file in a traceback, or an empty string."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f" (line {error.lineno} of `{Path(error.filename or file).name}`)"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file.resolve()
    ]
    return f" (line {lines[-1]} of `{file.name}`)" if lines else ""


def _import(file: Path) -> Any:
    path = file.resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        detail = error.msg if isinstance(error, SyntaxError) else error
        raise ConfigError(
            f"`{file}` cannot be imported: {type(error).__name__}: {detail}{line_in(error, file)}",
            hint="fix the file, or set another one in `reward.functions`",
        ) from error
    return module


def _columns(calls: Sequence[Call]) -> dict[str, list[Any]]:
    """Responses, prompts and data columns as lists. The response to a chat prompt is a list of one message."""
    keys = dict.fromkeys(key for call in calls for key in call.extra_info)
    columns: dict[str, list[Any]] = {key: [call.extra_info.get(key) for call in calls] for key in keys}
    return columns | {
        "prompts": [call.messages for call in calls],
        COMPLETIONS: [
            call.solution_str
            if isinstance(call.messages, str) or call.messages is None
            else [{"role": "assistant", "content": call.solution_str}]
            for call in calls
        ],
        "completion_ids": [None if call.response_ids is None else list(call.response_ids) for call in calls],
        "ground_truth": [call.ground_truth for call in calls],
        "data_source": [call.data_source for call in calls],
    }


def outcome_of(value: Any, *, function: str, row: int) -> RewardOutcome:
    """The outcome for a number, or for a dict with `score`; its other keys become extras, and `acc` the correctness.

    None, NaN and infinity are errors of that response. Any other value is misuse, which stops the run.
    """
    extras: dict[str, Any] = {}
    score = value
    if isinstance(value, Mapping):
        if "score" not in value:
            keys = quoted(value) or "no keys"
            return failed(f"`{function}` returned a dict with {keys} for row {row}, expected `score`", kind="misuse")
        score = value["score"]
        extras = {str(key): plain(item) for key, item in value.items() if key != "score"}
    number = as_number(score)
    if number is None:
        kind = "error" if score is None else "misuse"
        return failed(f"`{function}` returned {shown(score)} for row {row}, expected a number", kind=kind)
    if not math.isfinite(number):
        return failed(f"`{function}` returned `{number}` for row {row}, expected a finite number")
    accuracy = as_number(extras.get("acc"))
    return RewardOutcome(reward=number, correct=None if accuracy is None else accuracy >= 1, extras=extras)


def failed(message: str, *, kind: Any = "error") -> RewardOutcome:
    """The outcome of a function that returned no reward."""
    return RewardOutcome(reward=None, failure=Failure(kind=kind, message=message))


def as_number(value: Any) -> float | None:
    """The float of a number, boolean or zero-dimensional array, else None."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, (int, float, Decimal, Fraction)):
        return float(value)
    return None


def plain(value: Any) -> Any:
    """A value that another process can read without the user's code: unknown objects become their `repr`."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return shown(value)


def shown(value: Any) -> str:
    """The `repr` of a value, shortened for a message."""
    text = repr(value)
    return f"`{text[:SHOWN_CHARACTERS]}{'…' if len(text) > SHOWN_CHARACTERS else ''}`"
