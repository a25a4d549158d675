"""The default of a setting is written once, in rl_compat/config."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from architecture.source_tree import Source, sources
from rl_compat.config.settings import settings

NEUTRAL: dict[str, Any] = {
    "Encoding.bad_rows": "error",
    "LogitRule.temperature": 1.0,
    "MemoryRequest.tensor_parallel": 1,
    "Reading.bad_rows": "error",
    "PoolPlan.num_nodes": 1,
    "RolePlan.quantization": "none",
    "RolePlan.tensor_parallel": 1,
    "RolloutPlan.tensor_parallel": 1,
    "Workload.lora_rank": 0,
}
"fields of other things, whose default leaves them as they are: no scaling, no adapters, nothing divided or dropped"


def defaults_of(source: Source) -> Iterator[tuple[str, str, Any]]:
    """Class, field and default of every dataclass field with a literal default that is a value."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ClassDef) or not any("dataclass" in ast.unparse(d) for d in node.decorator_list):
            continue
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.value is not None:
                try:
                    value = ast.literal_eval(field.value)
                except ValueError:
                    continue
                if value not in (None, ()):
                    yield node.name, field.target.id, value


def test_no_dataclass_outside_the_settings_repeats_a_default() -> None:
    declared: dict[str, list[Any]] = {}
    for setting in settings().values():
        declared.setdefault(setting.name, []).append(setting.default)
    repeated = {
        f"{owner}.{field}": value
        for source in sources()
        if source.area not in ("config", "doctor")
        for owner, field, value in defaults_of(source)
        if any(value == default and type(value) is type(default) for default in declared.get(field, []))
    }

    assert repeated == NEUTRAL
