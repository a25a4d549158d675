"""The built-in rewards by name, with their requirements and arguments."""

from __future__ import annotations

import importlib.util
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rl_compat.errors import ConfigError, did_you_mean, quoted
from rl_compat.rewards.builtin.choice import multiple_choice
from rl_compat.rewards.builtin.gsm8k import gsm8k, gsm8k_format, gsm8k_strict
from rl_compat.rewards.builtin.math_answer import math, math_dapo
from rl_compat.rewards.builtin.texts import (
    arithmetic,
    cosine_length,
    exact_match,
    format_tags,
    qa_exact_match,
    regex,
    repetition,
)
from rl_compat.rewards.types import RewardOutcome

AUTO = "auto"
TRUE_WORDS, FALSE_WORDS = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
GIVEN = ("prompt_text", "response_ids", "max_response_length", "correct")
"keyword-only parameters that the run passes; all others come from `reward.function_arguments`"

Truth = Literal["none", "any", "number", "digits", "letter", "texts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Builtin:
    """One built-in reward, called as `function(response, ground_truth, **arguments)`."""

    function: Callable[..., RewardOutcome]
    truth: Truth = "any"
    "type of the ground truth"
    timed: bool = False
    "may hang, so it runs in a process with a time limit"
    reads_thoughts: bool = False
    "judges the whole response; the others see only what follows its thoughts"
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
        function=gsm8k_strict,
        truth="digits",
        looks_for="`#### <number>`",
        remedy="`reward.functions=gsm8k` also accepts other formats",
    ),
    "gsm8k_format": Builtin(function=gsm8k_format, truth="none"),
    "arithmetic": Builtin(function=arithmetic, truth="digits"),
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
    "regex": Builtin(function=regex, truth="none", timed=True, reads_thoughts=True, looks_for="the pattern"),
    "format": Builtin(function=format_tags, truth="none", reads_thoughts=True),
    "repetition": Builtin(function=repetition, truth="none", reads_thoughts=True),
    "cosine_length": Builtin(function=cosine_length, truth="none", reads_thoughts=True),
}


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


def _parsed(key: str, text: str, kind: Any) -> Any:
    words = {int: "an integer", float: "a number", bool: "`true` or `false`"}
    try:
        if kind is bool:
            return {**dict.fromkeys(TRUE_WORDS, True), **dict.fromkeys(FALSE_WORDS, False)}[text.lower()]
        return kind(text) if kind in (int, float) else text
    except (ValueError, KeyError) as error:
        raise ConfigError(f"`{key}` is `{text}`, expected {words[kind]}") from error
