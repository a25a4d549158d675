"""References in values, in OmegaConf's syntax: `${a.b}`, `${.b}`, `${oc.select:a.b,default}`, `${oc.env:NAME}`."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

REFERENCE = re.compile(r"\$\{([^{}]*)\}")

Known = Callable[[str], str | None]
"returns the text of a key, or None if it has no value"


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
        return _of_environment(first, default if has_default else None)
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


def _of_environment(name: str, default: str | None) -> str:
    value = os.environ.get(name, default)
    if value is None:
        raise Unresolved(f"the environment has no `{name}`", hint=f"set `{name}` before the command")
    return value
