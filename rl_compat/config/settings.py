"""Every setting by its dotted key: type, limits, default and description, read from the dataclasses in types.py."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import typing
from collections.abc import Collection, Iterator, Mapping
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

Part = TypeVar("Part")
"a section, a group or the whole configuration"


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


@cache
def sections() -> Mapping[str, type]:
    """Section or group to its dataclass, each section before its groups."""
    return dict(_groups("", types.RunConfig))


@cache
def settings() -> Mapping[str, Setting]:
    """Dotted key to setting, section by section, a section's own settings before those of its groups."""
    sentences = _sentences()
    found = [
        Setting(
            section=section,
            name=field.name,
            hint=typing.get_type_hints(kind)[field.name],
            annotation=typing.get_type_hints(kind, include_extras=True)[field.name],
            default=field.default if field.default_factory is dataclasses.MISSING else field.default_factory(),
            sentence=next(filter(None, (sentences.get((base.__name__, field.name)) for base in kind.__mro__)), ""),
        )
        for section, kind in sections().items()
        for field in dataclasses.fields(kind)
        if f"{section}.{field.name}" not in sections()
    ]
    return {setting.key: setting for setting in found}


def _groups(prefix: str, kind: type) -> Iterator[tuple[str, type]]:
    for name, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            yield f"{prefix}{name}", hint
            yield from _groups(f"{prefix}{name}.", hint)


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
    return {key: attrgetter(key)(config) for key in settings()}


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
    own |= {group: replace(getattr(config, group), part) for group, part in groups.items()}
    return dataclasses.replace(config, **own)  # type: ignore[type-var]


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
