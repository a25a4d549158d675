"""Every setting by its dotted key: type, limits, default and description, read from the dataclasses in types.py."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from operator import attrgetter
from typing import Any, TypeVar

from rl_compat.algorithms.table import ALGORITHMS, Share
from rl_compat.config import types
from rl_compat.config.values import limits_of

GROUP_SIZE = 8
"default responses per prompt of algorithms that compare them"
POOLS = "pools"
"the section of pools"
POOL_KEY = re.compile(rf"({POOLS}\.[A-Za-z][\w-]*)(?:\.(\w+))?")
"section of a pool, and a name in it"

Part = TypeVar("Part")
"a section, a group or the whole configuration"
Declaration = TypeVar("Declaration")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting: one field of one section or group."""

    section: str
    "the section, or section and group, such as `algorithm.clip_cov`"
    name: str
    hint: Any
    "the field's type, without limits"
    annotation: Any
    "the field's type, with limits"
    default: Any
    sentence: str

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def limits(self) -> str:
        """The limits in words; empty without limits."""
        return " and ".join(dict.fromkeys(limit.words for limit in limits_of(self.annotation)))


class Declared(Mapping[str, Declaration]):
    """Declarations by dotted key: iterates over those of every run, and finds those of pools too.

    A pool is a section `pools.NAME` for any name. All pools have the same settings.
    """

    def __init__(self, declared: Mapping[str, Declaration], of_pool: Callable[[str, str], Declaration | None]) -> None:
        """`of_pool` is the declaration for a pool's section and a name in it, which is empty for the section."""
        self._declared = declared
        self._of_pool = of_pool

    def __getitem__(self, key: str) -> Declaration:
        if key in self._declared:
            return self._declared[key]
        match = POOL_KEY.fullmatch(key)
        found = self._of_pool(match[1], match[2] or "") if match else None
        if found is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)


@cache
def sections() -> Mapping[str, type]:
    """Section or group to its dataclass, each section before its groups."""
    return Declared(dict(_groups("", types.RunConfig)), lambda section, name: None if name else types.PoolConfig)


@cache
def settings() -> Mapping[str, Setting]:
    """Dotted key to setting, section by section, a section's own settings before those of its groups."""
    found = [setting for section, kind in sections().items() for setting in _settings_of(section, kind)]
    of_pool = {setting.name: setting for setting in pool_settings("NAME")}

    def in_pool(section: str, name: str) -> Setting | None:
        return dataclasses.replace(of_pool[name], section=section) if name in of_pool else None

    return Declared({setting.key: setting for setting in found}, in_pool)


@cache
def pool_settings(name: str) -> tuple[Setting, ...]:
    """All settings of a pool."""
    return tuple(_settings_of(f"{POOLS}.{name}", types.PoolConfig))


def own_pool_settings() -> tuple[Setting, ...]:
    """The settings of a pool that `plan` does not have."""
    shared = {field.name for field in dataclasses.fields(types.DevicesConfig)}
    return tuple(setting for setting in pool_settings("NAME") if setting.name not in shared)


def _settings_of(section: str, kind: type) -> list[Setting]:
    """The settings of one section, without those of its groups."""
    sentences, hints = _sentences(), typing.get_type_hints(kind)
    annotations = typing.get_type_hints(kind, include_extras=True)
    return [
        Setting(
            section=section,
            name=field.name,
            hint=hints[field.name],
            annotation=annotations[field.name],
            default=field.default if field.default_factory is dataclasses.MISSING else field.default_factory(),
            sentence=next(filter(None, (sentences.get((base.__name__, field.name)) for base in kind.__mro__)), ""),
        )
        for field in dataclasses.fields(kind)
        if not dataclasses.is_dataclass(hints[field.name])
    ]


def _groups(prefix: str, kind: type) -> Iterator[tuple[str, type]]:
    for name, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            yield f"{prefix}{name}", hint
            yield from _groups(f"{prefix}{name}.", hint)


@cache
def _sentences() -> dict[tuple[str, str], str]:
    """Class and field to the docstring below the field."""
    classes = [node for node in ast.parse(inspect.getsource(types)).body if isinstance(node, ast.ClassDef)]
    return {
        (node.name, statement.target.id): str(below.value.value)
        for node in classes
        for statement, below in pairwise(node.body)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }


def values_of(config: types.RunConfig) -> dict[str, Any]:
    """The values of a configuration by dotted key."""
    of_run = {key: attrgetter(key)(config) for key in settings()}
    of_pools = {
        f"{POOLS}.{name}.{setting.name}": getattr(pool, setting.name)
        for name, pool in config.pools.items()
        for setting in pool_settings(name)
    }
    return of_run | of_pools


def build(values: Mapping[str, Any]) -> types.RunConfig:
    """The configuration with these values by dotted key, and the defaults for the rest."""
    return replace(types.RunConfig(), values)


def replace(config: Part, values: Mapping[str, Any]) -> Part:
    """A copy of a configuration, or of one section, with the values at these dotted keys changed."""
    own = {key: value for key, value in values.items() if "." not in key}
    groups: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        group, dot, rest = key.partition(".")
        if dot:
            groups.setdefault(group, {})[rest] = value
    own |= {group: _replaced(getattr(config, group), part) for group, part in groups.items()}
    return dataclasses.replace(config, **own)  # type: ignore[type-var]


def _replaced(group: Any, values: Mapping[str, Any]) -> Any:
    """A group with the values of dotted keys changed. Pools that are not there yet have the defaults otherwise."""
    if not isinstance(group, Mapping):
        return replace(group, values)
    parts: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        name, _, rest = key.partition(".")
        parts.setdefault(name, {})[rest] = value
    return {**group, **{name: replace(group.get(name, types.PoolConfig()), part) for name, part in parts.items()}}


def settings_by_algorithm(values: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Dotted key to value for what the name of the algorithm in `values` sets; `given` keeps its values."""
    row = ALGORITHMS.get(values.get("algorithm.name", ""))
    if row is None:
        return {}
    defaults = {**({"algorithm.group_size": GROUP_SIZE} if row.needs_groups else {}), **row.defaults}
    return {
        key: int(value.fraction * values.get(value.of, settings()[value.of].default))
        if isinstance(value, Share)
        else value
        for key, value in defaults.items()
        if key not in given
    }
