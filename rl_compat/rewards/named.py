"""Reward functions given as Python objects, under the names that stand for them in the settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl_compat.errors import ConfigError
from rl_compat.rewards.builtin.table import AUTO, BUILTINS

PREFIX = "python:"
"prefix of the name of an object in the settings"

RewardFunction = Callable[..., Any]
"a reward function: called with the keywords of docs/rewards.md that it accepts; returns a number or a dict"


def named_functions(reward: Any, functions: dict[str, RewardFunction]) -> tuple[str, ...]:
    """The names that stand for reward functions in the settings; Python functions are added to `functions`."""
    names: list[str] = []
    for item in reward if isinstance(reward, list | tuple) else (reward,):
        if isinstance(item, str):
            names.append(item)
            continue
        if not callable(item):
            raise ConfigError(f"`reward` is a {type(item).__name__}, not a function or the name of one")
        name = f"{PREFIX}{getattr(item, '__name__', type(item).__name__)}"
        if name in functions:
            name = f"{name}_{len(functions)}"
        functions[name] = item
        names.append(name)
    return tuple(names)


def names_function(name: str) -> bool:
    """Whether a text is a built-in name or `file.py:function`, and not a model."""
    return name == AUTO or name in BUILTINS or ".py:" in name
