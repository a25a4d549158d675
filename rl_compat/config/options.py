"""Options of Python calls that stand for settings: typed in a TypedDict, checked like a settings file."""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from functools import cache
from operator import attrgetter
from typing import Any

from rl_compat.config.settings import settings
from rl_compat.config.types import RunConfig
from rl_compat.config.values import Mismatch, choices_of, coerce, violations
from rl_compat.errors import ConfigError, check_type, did_you_mean, nearest


@cache
def option_keys(options: type) -> Mapping[str, str]:
    """Option to the dotted key of its setting, for a TypedDict whose fields are `Annotated[type, key]`."""
    hints = typing.get_type_hints(options, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


def values_of_options(
    given: Mapping[str, Any], keys: Mapping[str, str], *, owner: str, others: Mapping[str, Collection[str]]
) -> dict[str, Any]:
    """The settings that options stand for, by dotted key.

    `others` has the options of the other owners. Raises ConfigError, with the option's name, for an option that `owner`
    does not have and for a value that its setting does not allow.
    """
    for name in given:
        if name not in keys:
            users = [f"`{other}`" for other, known in others.items() if name in known and other != owner]
            listed = f"options are `{'`, `'.join(keys)}`"
            hint = f"it is an option of {' and '.join(users)}" if users else did_you_mean(name, keys, listed)
            raise ConfigError(f"`{name}` is not an option of `{owner}`", hint=hint)
    return {keys[name]: checked_value(name, value, key=keys[name]) for name, value in given.items()}


def check_section(section: str, values: Any) -> None:
    """Raise ConfigError, with its key, for a value of a section's dataclass that its setting does not allow."""
    kind = type(getattr(RunConfig(), section))
    names = choices_of(settings()[f"{section}.name"].hint) if f"{section}.name" in settings() else ()
    close = values if values in names else nearest(str(values), names)
    check_type(section, values, kind, hint=f'write `{kind.__name__}(name="{close}")`' if close else None)
    for key in settings():
        name = key.removeprefix(f"{section}.")
        if name != key:
            checked_value(key, attrgetter(name)(values), key=key)


def checked_value(name: str, value: Any, *, key: str) -> Any:
    """A value of the option `name` as the type of the setting `key`. Raises ConfigError."""
    setting = settings()[key]
    try:
        value = coerce(value, setting.hint)
    except Mismatch as error:
        raise ConfigError(f"`{name}` takes {error.expected}, not `{value!r}`", hint=error.hint) from error
    for words in violations(value, setting.annotation):
        raise ConfigError(f"`{name}` {words}")
    return value
