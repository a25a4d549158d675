"""verl's public keys with their default in each release: the flattened PPO configuration of nine releases."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

ABSENT = "-"
"marks a release without the key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """The table: names of the releases from old to new, and for each key its default in each of them."""

    names: Sequence[str]
    defaults: Mapping[str, Sequence[Any]]

    def having(self, key: str) -> tuple[str, ...]:
        """The releases that have a key; empty for a key that verl never had."""
        given = self.defaults.get(key, ())
        return tuple(name for name, default in zip(self.names, given, strict=False) if default != ABSENT)

    def newest_default(self, key: str) -> Any:
        """The default in the newest release that has the key. Raises KeyError if none has it."""
        return next(default for default in reversed(self.defaults[key]) if default != ABSENT)

    def is_default(self, key: str, value: Any) -> bool:
        """Whether a value is the key's default in any release."""
        return any(default == value and default != ABSENT for default in self.defaults.get(key, ()))


@cache
def releases() -> Releases:
    """The shipped table."""
    table = json.loads(files("rl_compat.verl.keys").joinpath("verl_releases.json").read_text(encoding="utf-8"))
    return Releases(names=tuple(table["releases"]), defaults=table["keys"])
