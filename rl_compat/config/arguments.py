"""The `key=value` arguments of a command line, with the forms of Hydra: `+key=`, `++key=`, `~key`, and references.

References are those of OmegaConf: `${a.b}`, `${.b}`, `${oc.select:a.b,default}`, `${oc.env:NAME}`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from rl_compat.errors import ConfigError

REFERENCE = re.compile(r"\$\{([^{}]*)\}")

Known = Callable[[str], str | None]
"returns the text of a key, or None if it has no value"


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


def split_arguments(texts: Iterable[str | Argument], *, default: Known = lambda key: None) -> list[Argument]:
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


def _filled(argument: Argument, known: Known) -> Argument:
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


class Unresolved(Exception):  # noqa: N818
    """A reference that cannot be resolved, with the reason and a hint."""

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def fill_references(value: str, known: Known, *, path: tuple[str, ...]) -> str:
    """The value with each reference replaced, the innermost first; `path` holds the keys that led here.

    Raises Unresolved.
    """
    while match := REFERENCE.search(value):
        value = value[: match.start()] + _resolved(match.group(1).strip(), known, path) + value[match.end() :]
    return value


def _resolved(body: str, known: Known, path: tuple[str, ...]) -> str:
    name, separator, rest = body.partition(":")
    if not separator:
        return _of_key(_absolute(body, path[-1]), known, path)
    first, has_default, default = (part.strip() for part in rest.partition(","))
    if name == "oc.env":
        value = os.environ.get(first, default if has_default else None)
        if value is None:
            raise Unresolved(f"the environment has no `{first}`", hint=f"set `{first}` before the command")
        return value
    if name == "oc.select":
        return _of_key(_absolute(first, path[-1]), known, path, default=default if has_default else "null")
    if name == "now":
        return time.strftime(rest)
    raise Unresolved(f"`${{{body}}}` is not supported", hint="let the shell expand it")


def _absolute(name: str, key: str) -> str:
    """An absolute key from a relative one: one dot is the group of the referring key, each further dot its parent."""
    dots = len(name) - len(name.lstrip("."))
    groups = key.split(".")[:-dots] if dots else []
    return ".".join([*groups, name.lstrip(".")])


def _of_key(name: str, known: Known, path: tuple[str, ...], default: str | None = None) -> str:
    if name in path:
        raise Unresolved(f"`{path[0]}` refers to itself through `{name}`")
    value = known(name)
    if value is not None:
        return fill_references(value, known, path=(*path, name))
    if default is not None:
        return default
    hint = f"give `{name}=…` too" if "." in name else "a variable of the shell needs double quotes around it"
    raise Unresolved(f"it refers to `{name}`, which is not given", hint=hint)
