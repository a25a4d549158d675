"""The built-in rewards by name: what each needs of a row and of the run, and its arguments."""

from __future__ import annotations

import importlib.util
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rl_compat.errors import ConfigError, DataError, nearest
from rl_compat.rewards.builtin.arithmetic import arithmetic
from rl_compat.rewards.builtin.choice import multiple_choice, truth_letter
from rl_compat.rewards.builtin.form import format_tags
from rl_compat.rewards.builtin.gsm8k import gsm8k, gsm8k_format, gsm8k_strict
from rl_compat.rewards.builtin.length import cosine_length, repetition
from rl_compat.rewards.builtin.math_answer import math, math_dapo
from rl_compat.rewards.builtin.numbers import parse_number
from rl_compat.rewards.builtin.texts import exact_match, qa_exact_match, regex, truths
from rl_compat.rewards.sources import builtin_of, unknown_source
from rl_compat.rewards.types import Outcome

AUTO = "auto"
TRUE_WORDS, FALSE_WORDS = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
GIVEN = ("prompt_text", "response_ids", "max_response_length", "correct")
"keyword-only parameters of a built-in that the run gives; the others are `reward.function_arguments`"

Truth = Literal["none", "any", "number", "letter", "texts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Builtin:
    """One built-in reward, called as `function(response, ground_truth, **arguments)`."""

    function: Callable[..., Outcome]
    truth: Truth = "any"
    "what the ground truth has to be"
    timed: bool = False
    "runs in a process that can be killed: it may take forever"
    package: str | None = None
    "that has to be installed"
    looks_for: str = ""
    "the form of the answer that it finds"
    way_out: str = ""
    "what to do when no response has this form"

    @property
    def given(self) -> tuple[str, ...]:
        """What the run gives it beside response and ground truth."""
        return tuple(name for name in self._keywords() if name in GIVEN)

    @property
    def needed(self) -> tuple[str, ...]:
        """What of this it cannot do without."""
        keywords = self._keywords()
        return tuple(name for name in self.given if keywords[name].default is inspect.Parameter.empty)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the arguments that the user may set."""
        return tuple(name for name in self._keywords() if name not in GIVEN)

    @property
    def wrong(self) -> float:
        """The reward of an answer that could not be judged in time."""
        return -1.0 if self.function is math_dapo else 0.0

    def bind(self, name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
        """The user's arguments that it takes, in their types. Raises ConfigError for a value it cannot take."""
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
        function=gsm8k_strict,
        looks_for="`#### <number>`",
        way_out="`reward.functions=gsm8k` also reads answers in other forms",
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
        way_out="`reward.functions=exact_match` also reads responses without the tag",
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
    """The built-in of a name. Raises ConfigError for an unknown one, and for one whose package is not installed."""
    if name not in BUILTINS:
        known = (AUTO, *BUILTINS)
        close = nearest(name, known)
        raise ConfigError(
            f"there is no reward `{name}`: known are {', '.join(f'`{item}`' for item in known)}",
            hint=f"did you mean `{close}`" if close else "a function of your own is named `file.py:function`",
        )
    builtin = BUILTINS[name]
    if builtin.package is not None and importlib.util.find_spec(builtin.package) is None:
        package = builtin.package.replace("_", "-")
        raise ConfigError(
            f"the reward `{name}` needs the package `{package}`, which is not installed",
            hint="install it with `pip install 'rl_compat[math]'`",
        )
    return builtin


def check_rows(rows: Sequence[HasTruth], functions: Sequence[str], sources: Mapping[str, str] | None = None) -> None:
    """Raise DataError when the named functions cannot score these rows: unknown source, or no usable ground truth.

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
    """Raise DataError when `auto` does not know a data source."""
    unknown = [source for source in data_sources if builtin_of(source, sources) is None]
    if AUTO in functions and unknown:
        raise unknown_source(unknown, sources=sources)


def truth_problem(name: str, ground_truth: Any) -> str | None:
    """Why a built-in cannot use a ground truth, as what is said of its row; None when it can, or for another name."""
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
    return "put it in `reward_model.ground_truth`, or in a column `ground_truth` or `answer`" if missing else None


def _parsed(key: str, text: str, kind: Any) -> Any:
    words = {int: "a whole number", float: "a number", bool: "`true` or `false`"}
    try:
        if kind is bool:
            return {**dict.fromkeys(TRUE_WORDS, True), **dict.fromkeys(FALSE_WORDS, False)}[text.lower()]
        return kind(text) if kind in (int, float) else text
    except (ValueError, KeyError) as error:
        raise ConfigError(f"`{key}` is `{text}`, expected {words[kind]}") from error
