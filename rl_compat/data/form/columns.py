"""Columns of records: the names that a user gives, and values inside struct columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rl_compat.data.form.turns import unpacked_object

Record = dict[str, Any]
"column to plain value of one row, before its form is known"
Task = Literal["prompts", "supervised", "preference", "labelled"]

ROLES: Mapping[Task, tuple[str, ...]] = {
    "prompts": ("prompt", "answer"),
    "supervised": ("prompt", "response"),
    "preference": ("prompt", "chosen", "rejected"),
    "labelled": ("prompt", "response", "label", "chosen", "rejected"),
}
"the columns of a task that have a setting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Column names from the settings. A dot reaches into a struct: `extra_info.answer`."""

    prompt: str = "prompt"
    response: str | None = None
    chosen: str | None = None
    rejected: str | None = None
    label: str | None = None
    answer: str | None = None

    def named(self, task: Task) -> dict[str, str]:
        """Role to column, for the columns of the task that differ from the default."""
        default = Columns()
        found = {role: getattr(self, role) for role in ROLES[task]}
        return {role: column for role, column in found.items() if column and column != getattr(default, role)}


def columns_of(records: Iterable[Record]) -> tuple[str, ...]:
    """The keys of all records, in the order in which they appear."""
    return tuple(dict.fromkeys(key for record in records for key in record))


def plain(value: Any) -> Any:
    """Nested values as dict, list, str, bool and numbers; arrays and tensors become lists, whatever their shape."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return value


def lookup(record: Mapping[str, Any], column: str | None) -> Any:
    """The value of a column or of a field in a struct column, else None."""
    if column is None or column in record:
        return record[column] if column else None
    head, dot, tail = column.partition(".")
    return lookup(unpacked_object(record.get(head)), tail) if dot else None


def has_column(column: str, present: Sequence[str], records: Sequence[Record]) -> bool:
    """Whether the column exists; a field of a struct exists where any record has a value for it."""
    return column in present or ("." in column and any(lookup(record, column) is not None for record in records))
