"""A plan as JSON and back: the contents of a run's `plan.json`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rl_compat.errors import ConfigError
from rl_compat.hardware.recording import decode, read_record
from rl_compat.planning.types import SCHEMA_VERSION, Plan

TOTALS = ("total_bytes", "peak_bytes")
"sums that `plan.json` shows to readers"
PLAN_AGAIN = "resume the run with this version, which plans it again"


def to_json(plan: Plan) -> dict[str, Any]:
    """Dictionaries, lists, strings and numbers, with the total of each phase and the peak of each pool."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(plan)))
    for name, pool in plan.pools.items():
        row = values["pools"][name]
        row["peak_bytes"] = pool.peak_bytes
        for budget_row, budget in zip(row["budgets"], pool.budgets, strict=True):
            budget_row["total_bytes"] = budget.total_bytes
    return values


def from_json(values: Any) -> Plan:
    """The plan that `to_json` wrote. Raises ConfigError naming the field that is wrong."""
    return decode(Plan, _without_totals(values), schema=SCHEMA_VERSION, error=ConfigError, hint=PLAN_AGAIN)


def _without_totals(values: Any) -> Any:
    """The values without what `to_json` adds for readers."""
    if isinstance(values, list):
        return [_without_totals(item) for item in values]
    if isinstance(values, dict):
        return {name: _without_totals(item) for name, item in values.items() if name not in TOTALS}
    return values


def save_plan(plan: Plan, path: Path) -> None:
    """Write `plan.json`."""
    path.write_text(json.dumps(to_json(plan), indent=2) + "\n", encoding="utf-8")


def load_plan(path: Path) -> Plan:
    """Read `plan.json`. Raises ConfigError, naming the file, if it is missing or malformed."""
    return read_record(path, from_json, error=ConfigError, hint=PLAN_AGAIN)
