"""The built-in rewards by name, with their requirements and arguments."""

from __future__ import annotations

import importlib.util
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rl_compat.errors import ConfigError, DataError, did_you_mean, quoted
from rl_compat.rewards.builtin.arithmetic import arithmetic
from rl_compat.rewards.builtin.choice import multiple_choice, truth_letter
from rl_compat.rewards.builtin.form import format_tags
from rl_compat.rewards.builtin.gsm8k import gsm8k, gsm8k_format, gsm8k_strict
from rl_compat.rewards.builtin.length import cosine_length, repetition
from rl_compat.rewards.builtin.math_answer import math, math_dapo
from rl_compat.rewards.builtin.numbers import parse_number
from rl_compat.rewards.builtin.texts import exact_match, qa_exact_match, regex, truths
from rl_compat.rewards.sources import builtin_of, unknown_source
from rl_compat.rewards.types import RewardOutcome

AUTO = "auto"
TRUE_WORDS, FALSE_WORDS = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
GIVEN = ("prompt_text", "response_ids", "max_response_length", "correct")
"keyword-only parameters that the run passes; all others come from `reward.function_arguments`"

Truth = Literal["none", "any", "number", "letter", "texts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Builtin:
    """One built-in reward, called as `function(response, ground_truth, **arguments)`."""

    function: Callable[..., RewardOutcome]
    truth: Truth = "any"
    "type of the ground truth"
    timed: bool = False
    "may hang, so it runs in a process with a time limit"
    package: str | None = None
    "required package"
    looks_for: str = ""
    "the answer format that it finds"
    remedy: str = ""
    "hint if no response has this format"

    @property
    def given(self) -> tuple[str, ...]:
        """Arguments that the run passes in addition to response and ground truth."""
        return tuple(name for name in self._keywords() if name in GIVEN)

    @property
    def needed(self) -> tuple[str, ...]:
        """Those of `given` that are required."""
        keywords = self._keywords()
        return tuple(name for name in self.given if keywords[name].default is inspect.Parameter.empty)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the arguments that the user can set."""
        return tuple(name for name in self._keywords() if name not in GIVEN)

    @property
    def wrong(self) -> float:
        """The reward of a response that could not be judged in time."""
        return -1.0 if self.function is math_dapo else 0.0

    def bind(self, name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
        """The user's arguments that it accepts, parsed. Raises ConfigError if one is missing or has the wrong type."""
        hints = typing.get_type_hints(self.function)
        own = {key: arguments[key] for key in self.arguments if key in arguments}
        for key, parameter in self._keywords().items():
            if key not in GIVEN and parameter.default is parameter.empty and key not in own:
                raise ConfigError(f"the reward `{name}` needs `reward.function_arguments.{key}`")
        return {key: _parsed(f"reward.function_arguments.{key}", text, hints[key]) for key, text in own.items()}

    def _keywords(self) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(self.function).parameters
        return {name: item for name, item in parameters.items() if item.kind is item.KEYWORD_ONLY}


BUILTINS: Mapping[str, Builtin] = {
    "gsm8k": Builtin(function=gsm8k, truth="number", looks_for="a number"),
    "gsm8k_strict": Builtin(
        function=gsm8k_strict, looks_for="`#### <number>`", remedy="`reward.functions=gsm8k` also accepts other formats"
    ),
    "gsm8k_format": Builtin(function=gsm8k_format, truth="none"),
    "arithmetic": Builtin(function=arithmetic),
    "math": Builtin(function=math, truth="texts", timed=True, package="math_verify", looks_for=r"`\boxed{…}`"),
    "math_dapo": Builtin(function=math_dapo, truth="texts", timed=True, package="math_verify", looks_for="`Answer: …`"),
    "multiple_choice": Builtin(function=multiple_choice, truth="letter", looks_for="a letter such as `(B)`"),
    "exact_match": Builtin(function=exact_match, truth="texts", looks_for="any text"),
    "qa_exact_match": Builtin(
        function=qa_exact_match,
        truth="texts",
        looks_for="`<answer>…</answer>`",
        remedy="`reward.functions=exact_match` also accepts responses without the tag",
    ),
    "regex": Builtin(function=regex, truth="none", timed=True, looks_for="the pattern"),
    "format": Builtin(function=format_tags, truth="none"),
    "repetition": Builtin(function=repetition, truth="none"),
    "cosine_length": Builtin(function=cosine_length, truth="none"),
}


class HasTruth(Protocol):
    """A row or a prompt."""

    @property
    def data_source(self) -> str: ...
    @property
    def ground_truth(self) -> Any: ...
    @property
    def row(self) -> int: ...


def find_builtin(name: str) -> Builtin:
    """The built-in reward `name`. Raises ConfigError if it is unknown or its package is not installed."""
    if name not in BUILTINS:
        known = (AUTO, *BUILTINS)
        hint = did_you_mean(name, known, "a custom function has the form `file.py:function`")
        raise ConfigError(f"unknown reward `{name}`; known are {quoted(known)}", hint=hint)
    builtin = BUILTINS[name]
    if builtin.package is not None and importlib.util.find_spec(builtin.package) is None:
        package = builtin.package.replace("_", "-")
        raise ConfigError(
            f"the reward `{name}` needs the package `{package}`, which is not installed",
            hint="install it with `pip install 'rl_compat[math]'`",
        )
    return builtin


def check_rows(rows: Sequence[HasTruth], functions: Sequence[str], sources: Mapping[str, str] | None = None) -> None:
    """Raise DataError if a row has an unknown data source or no usable ground truth for one of the functions.

    `sources` is `reward.sources`.
    """
    if AUTO in functions:
        unknown = {row.row: row.data_source for row in rows if builtin_of(row.data_source, sources) is None}
        if unknown:
            raise unknown_source(unknown.values(), rows=list(unknown), sources=sources)
    for row in rows:
        for name in functions:
            meant = builtin_of(row.data_source, sources) if name == AUTO else name
            problem = truth_problem(meant or "", row.ground_truth)
            if problem is not None:
                raise DataError(f"row {row.row} {problem}", hint=_truth_hint(row.ground_truth))


def check_sources(
    data_sources: Iterable[str], functions: Sequence[str], sources: Mapping[str, str] | None = None
) -> None:
    """Raise DataError if `functions` contains `auto` and it does not know a data source."""
    unknown = [source for source in data_sources if builtin_of(source, sources) is None]
    if AUTO in functions and unknown:
        raise unknown_source(unknown, sources=sources)


def truth_problem(name: str, ground_truth: Any) -> str | None:
    """Why the built-in `name` cannot use a ground truth, as a predicate of the row; None if it can use it."""
    truth = BUILTINS[name].truth if name in BUILTINS else "none"
    if truth == "none":
        return None
    accepted = truths(ground_truth) if truth == "texts" else [ground_truth]
    if not accepted or any(item is None or str(item) == "" for item in accepted):
        return f"has no ground truth, which the reward `{name}` needs"
    shown = f"has the ground truth `{str(ground_truth)[:40]}`, and the reward `{name}` needs"
    if truth == "number" and parse_number(str(ground_truth)) is None:
        return f"{shown} a number"
    if truth == "letter" and truth_letter(ground_truth) is None:
        return f"{shown} a letter"
    return None


def _truth_hint(ground_truth: Any) -> str | None:
    missing = ground_truth is None or str(ground_truth) == ""
    return "add it as `reward_model.ground_truth`, or as a column `ground_truth` or `answer`" if missing else None


def _parsed(key: str, text: str, kind: Any) -> Any:
    words = {int: "an integer", float: "a number", bool: "`true` or `false`"}
    try:
        if kind is bool:
            return {**dict.fromkeys(TRUE_WORDS, True), **dict.fromkeys(FALSE_WORDS, False)}[text.lower()]
        return kind(text) if kind in (int, float) else text
    except (ValueError, KeyError) as error:
        raise ConfigError(f"`{key}` is `{text}`, expected {words[kind]}") from error
