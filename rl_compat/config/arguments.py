"""The `key=value` arguments of a command line, with the forms of Hydra: `+key=`, `++key=`, `~key`, `${other.key}`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from rl_compat.config.references import Unresolved, fill_references
from rl_compat.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One parsed argument."""

    text: str
    "the original text"
    key: str
    value: str
    "empty for a deletion"
    deletes: bool = False
    problem: str = ""
    "why the value is unknown"
    hint: str | None = None
    inherited: bool = False
    "whether it comes from a file that lists every key, so that a default of verl in it was not chosen by a user"


def split_arguments(
    texts: Iterable[str | Argument], *, default: Callable[[str], str | None] = lambda key: None
) -> list[Argument]:
    """Arguments with references to each other resolved; `default` returns the value of any other key.

    A reference that cannot be resolved becomes the argument's `problem`. Raises ConfigError for other text than
    `key=value`.
    """
    arguments = [text if isinstance(text, Argument) else split_argument(text) for text in texts]
    given = {argument.key: argument.value for argument in arguments if not argument.deletes}

    def known(key: str) -> str | None:
        return given[key] if key in given else default(key)

    return [_filled(argument, known) for argument in arguments]


def split_argument(text: str) -> Argument:
    """Parse one argument; references are not resolved."""
    if text.startswith("~"):
        key, _, value = text[1:].partition("=")
        return Argument(text=text, key=_key(key, text), value=value, deletes=True)
    key, separator, value = text.partition("=")
    if not separator:
        raise ConfigError(f"`{text}` is not of the form `key=value`", hint="write for example `trainer.batch_size=16`")
    return Argument(text=text, key=_key(key.lstrip("+"), text), value=value.strip())


def last_of_each(arguments: Sequence[Argument]) -> tuple[list[Argument], list[tuple[Argument, Argument]]]:
    """The last argument for each key, and each earlier one with its replacement."""
    last = {argument.key: argument for argument in arguments}
    kept = [argument for argument in arguments if last[argument.key] is argument]
    return kept, [(argument, last[argument.key]) for argument in arguments if last[argument.key] is not argument]


def _filled(argument: Argument, known: Callable[[str], str | None]) -> Argument:
    if argument.problem or "${" not in argument.value:
        return argument
    try:
        return replace(argument, value=fill_references(argument.value, known, path=(argument.key,)))
    except Unresolved as error:
        return replace(argument, problem=error.reason, hint=error.hint)


def _key(text: str, argument: str) -> str:
    key = text.strip()
    if not re.fullmatch(r"[A-Za-z_][\w.-]*", key):
        raise ConfigError(f"`{argument}` does not start with a key", hint="write for example `trainer.batch_size=16`")
    return key
