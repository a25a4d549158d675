"""The `key=value` arguments of a command line, with the forms of Hydra: `+key=`, `++key=`, `~key`, `${other.key}`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rl_compat.errors import ConfigError

REFERENCE = re.compile(r"\$\{([^{}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument, taken apart."""

    text: str
    "as it was typed"
    key: str
    value: str
    "empty for a deletion"
    deletes: bool = False


def split_arguments(texts: Iterable[str]) -> list[Argument]:
    """Arguments with references to each other filled in. Raises ConfigError for what is not `key=value`."""
    arguments = [split_argument(text) for text in texts]
    given = {argument.key: argument.value for argument in arguments}
    return [
        replace(argument, value=fill_references(argument.value, given, path=(argument.key,))) for argument in arguments
    ]


def split_argument(text: str) -> Argument:
    """One argument taken apart, references as they are."""
    if text.startswith("~"):
        key, _, value = text[1:].partition("=")
        return Argument(text=text, key=_key(key, text), value=value, deletes=True)
    key, separator, value = text.partition("=")
    if not separator:
        raise ConfigError(f"`{text}` is not of the form `key=value`", hint="write for example `trainer.batch_size=16`")
    return Argument(text=text, key=_key(key.lstrip("+"), text), value=value.strip())


def fill_references(value: str, given: Mapping[str, str], *, path: tuple[str, ...]) -> str:
    """The value with each `${key}` replaced by what that key was given; `path` is the keys that led here."""

    def filled(match: re.Match[str]) -> str:
        name = match.group(1).strip()
        if name in path:
            raise ConfigError(f"`{path[0]}` refers to itself through `{name}`")
        if name not in given:
            hint = "let the shell fill it in" if ":" in name else f"give `{name}=…` too"
            raise ConfigError(f"`{path[-1]}` refers to `{name}`, which is not given", hint=hint)
        return fill_references(given[name], given, path=(*path, name))

    return REFERENCE.sub(filled, value)


def last_of_each(arguments: Sequence[Argument]) -> tuple[list[Argument], list[tuple[Argument, Argument]]]:
    """The last argument for each key, and every earlier one with the one that replaced it."""
    last = {argument.key: argument for argument in arguments}
    kept = [argument for argument in arguments if last[argument.key] is argument]
    return kept, [(argument, last[argument.key]) for argument in arguments if last[argument.key] is not argument]


def _key(text: str, argument: str) -> str:
    key = text.strip()
    if not re.fullmatch(r"[A-Za-z_][\w.-]*", key):
        raise ConfigError(f"`{argument}` does not start with a key", hint="write for example `trainer.batch_size=16`")
    return key
