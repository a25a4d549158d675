"""A plan as JSON and back: what a run's `plan.json` holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rl_compat.capability.types import Choice, Rejected
from rl_compat.errors import ConfigError
from rl_compat.planning.types import SCHEMA_VERSION, PhaseBudget, Plan, RolePlan, RolloutPlan


def to_json(plan: Plan) -> dict[str, Any]:
    """Plain dictionaries, lists, strings and numbers; each phase with its total."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(plan)))
    for row, budget in zip(values["budgets"], plan.budgets, strict=True):
        row["total_bytes"] = budget.total_bytes
    return values | {"peak_bytes": plan.peak_bytes}


def from_json(values: Mapping[str, Any]) -> Plan:
    """The plan that `to_json` described. Raises ConfigError for another version's or a damaged one."""
    if values.get("schema") != SCHEMA_VERSION:
        raise ConfigError(f"the plan has schema `{values.get('schema')}`, this version reads {SCHEMA_VERSION}")
    capability = values.get("emulated_capability")
    changed = {
        "roles": {name: RolePlan(**role) for name, role in values["roles"].items()},
        "rollout": RolloutPlan(**values["rollout"]),
        "budgets": tuple(PhaseBudget(phase=row["phase"], items=row["items"]) for row in values["budgets"]),
        "choices": {name: _choice(row) for name, row in values["choices"].items()},
        "notes": tuple(values["notes"]),
        "sdpa_backends": tuple(values["sdpa_backends"]),
        "emulated_capability": None if capability is None else tuple(capability),
    }
    plain = {name: value for name, value in values.items() if name != "peak_bytes"}
    return Plan(**(plain | changed))


def save_plan(plan: Plan, path: Path) -> None:
    """Write `plan.json`."""
    path.write_text(json.dumps(to_json(plan), indent=2) + "\n", encoding="utf-8")


def load_plan(path: Path) -> Plan:
    """Read `plan.json`; ConfigError with the file's name when it is missing or wrong."""
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read the plan `{path}`: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"`{path}` is not JSON: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"`{path}` is not a plan: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"`{path}`: {error.message}", hint=error.hint) from None


def _choice(row: Mapping[str, Any]) -> Choice:
    rejected = tuple(Rejected(value=item["value"], reasons=tuple(item["reasons"])) for item in row["rejected"])
    return Choice(value=row["value"], reason=row["reason"], rejected=rejected, asked=row["asked"])
