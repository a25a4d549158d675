"""Every native setting by its dotted key: type, default and sentence, read from the dataclasses in types.py."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from rl_compat.algorithms.table import ALGORITHMS, Share
from rl_compat.config import types


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One field of one section."""

    section: str
    name: str
    hint: Any
    "the field's type, as written in types.py"
    default: Any
    sentence: str
    "what it means; empty when the name says it"

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"


@cache
def sections() -> Mapping[str, type]:
    """Section name to its dataclass, in the order of RunConfig."""
    hints = typing.get_type_hints(types.RunConfig)
    return {field.name: hints[field.name] for field in dataclasses.fields(types.RunConfig)}


@cache
def settings() -> Mapping[str, Setting]:
    """Dotted key to setting, in the order of types.py."""
    sentences = describe_fields()
    found = {}
    for section, kind in sections().items():
        hints, default = typing.get_type_hints(kind), kind()
        for field in dataclasses.fields(kind):
            key = f"{section}.{field.name}"
            found[key] = Setting(
                section=section,
                name=field.name,
                hint=hints[field.name],
                default=getattr(default, field.name),
                sentence=sentences[key],
            )
    return found


@cache
def describe_fields() -> Mapping[str, str]:
    """Dotted key to the sentence written under the field, empty where there is none."""
    classes = {node.name: node for node in ast.parse(inspect.getsource(types)).body if isinstance(node, ast.ClassDef)}
    return {
        f"{section}.{name}": sentence
        for section, kind in sections().items()
        for name, sentence in _sentences(classes[kind.__name__])
    }


def _sentences(node: ast.ClassDef) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found.append((statement.target.id, ""))
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and found:
            found[-1] = (found[-1][0], str(statement.value.value))
    return found


def values_of(config: types.RunConfig) -> dict[str, Any]:
    """A configuration as dotted keys and values."""
    return {key: getattr(getattr(config, setting.section), setting.name) for key, setting in settings().items()}


def build(values: Mapping[str, Any]) -> types.RunConfig:
    """The configuration with these values by dotted key, and the defaults for the rest."""
    return replace(types.RunConfig(), values)


def settings_by_algorithm(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by dotted key that the algorithm's name sets beside these values; none of these is among them."""
    row = ALGORITHMS.get(values.get("algorithm.name", ""))
    if row is None:
        return {}
    return {key: _follow(value, values) for key, value in row.defaults.items() if key not in values}


def _follow(value: Any, values: Mapping[str, Any]) -> Any:
    if not isinstance(value, Share):
        return value
    return int(value.fraction * values.get(value.of, settings()[value.of].default))


def replace(config: types.RunConfig, values: Mapping[str, Any]) -> types.RunConfig:
    """A copy of a configuration with some values, by dotted key, changed."""
    changes: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        changes.setdefault(section, {})[name] = value
    parts = {section: dataclasses.replace(getattr(config, section), **part) for section, part in changes.items()}
    return dataclasses.replace(config, **parts)
