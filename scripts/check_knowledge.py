#!/usr/bin/env python3
"""Check that the tables of doctor/knowledge are complete and consistent with each other, the rules and pyproject.toml.

Standard library alone: `python3 scripts/check_knowledge.py`. Prints one fault a line; exit code 1 when there is one.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import knowledge_rules  # noqa: E402

Tables = Mapping[str, Mapping[str, Any]]
Form = Callable[[Any], bool]
CONFIDENCES = ("high", "medium-high", "medium", "medium-low", "low")
INHERITED = ("source", "date", "confidence")
"fields that any row may have; they default to those of its section or table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a row comes from; empty if not stated."""

    source: str
    date: str
    confidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The rows of one part of a table."""

    key: tuple[str, ...]
    "fields that together identify a row"
    fields: Mapping[str, Form]
    optional: Mapping[str, Form]


def matches(pattern: str) -> Form:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def maybe(form: Form) -> Form:
    return lambda value: value is None or form(value)


def some(form: Form) -> Form:
    return lambda value: isinstance(value, list) and bool(value) and all(map(form, value))


def any_of(form: Form) -> Form:
    return lambda value: isinstance(value, list) and all(map(form, value))


def one_of(*values: str) -> Form:
    return lambda value: value in values


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def is_pattern(value: Any) -> bool:
    """A regular expression; the empty one matches everything."""
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except re.error:
        return False


def by_variant(form: Form) -> Form:
    return lambda value: (
        isinstance(value, dict) and all(map(FORMS["variant"], value)) and all(map(form, value.values()))
    )


def is_library(value: Any) -> bool:
    """One native library of a bitsandbytes wheel."""
    forms = {"cuda_min": FORMS["minor"], "cuda_max": FORMS["minor"], "archs": some(is_whole), "ptx": maybe(is_whole)}
    return isinstance(value, dict) and value.keys() == forms.keys() and all(forms[name](value[name]) for name in forms)


BOUND = r"(?:==|!=|>=|<=|<|>)[0-9]+(?:\.[0-9]+)*(?:\.\*|\.?(?:post|rc)[0-9]+)?"
month = matches(r"20[0-9][0-9]-(0[1-9]|1[0-2])(-(0[1-9]|[12][0-9]|3[01]))?")
FORMS: Mapping[str, Form] = {
    "text": is_text,
    "number": is_number,
    "whole": is_whole,
    "flag": is_flag,
    "library": is_library,
    "pattern": is_pattern,
    "month": month,
    "version": matches(r"[0-9]+(\.[0-9]+)*(\.?(post|rc|a|b)[0-9]+)?"),
    "minor": matches(r"[0-9]+\.[0-9]+"),
    "bounds": matches(rf"{BOUND}(,{BOUND})*"),
    "variant": matches(r"cu1[0-9][0-9]"),
    "wheel_arch": matches(r"[0-9]+\.[0-9](\+PTX)?"),
    "pci_id": matches(r"[0-9a-f]{4}"),
}
WRAPPERS: Mapping[str, Callable[[Form], Form]] = {
    "maybe": maybe,
    "some": some,
    "any": any_of,
    "by_variant": by_variant,
}


def form_of(text: str) -> Form:
    """`some minor`, `maybe text`, `/a regular expression/`, or values: `open|proprietary`."""
    first, _, rest = text.partition(" ")
    if first in WRAPPERS:
        return WRAPPERS[first](form_of(rest))
    return matches(text.strip("/")) if text.startswith("/") else FORMS.get(text) or one_of(*text.split("|"))


def read_schema(path: Path = Path(__file__).with_name("knowledge_schema.json")) -> dict[str, dict[str, Section]]:
    """The sections of each table: the key of a row, its fields and the form of each."""

    def section(key: list[str], fields: dict[str, str], optional: dict[str, str] | None = None) -> Section:
        forms = [{name: form_of(text) for name, text in part.items()} for part in (fields, optional or {})]
        return Section(key=tuple(key), fields=forms[0], optional=forms[1])

    tables = json.loads(path.read_text(encoding="utf-8"))["tables"]
    return {name: {part: section(**values) for part, values in parts.items()} for name, parts in tables.items()}


TABLES = read_schema()


def read_tables(folder: Path = ROOT / "doctor" / "knowledge") -> dict[str, dict[str, Any]]:
    """Every table of the folder by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def find_faults(tables: Tables) -> list[str]:
    """Every fault; rules that compare tables run only if each table is valid by itself."""
    faults = [fault for name in tables for fault in check_table(name, tables[name])]
    faults += [f"{name}: the table is missing" for name in TABLES if name not in tables]
    return faults or [fault for rule in knowledge_rules.RULES for fault in rule(tables)]


def check_table(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    """Faults in the form or source of a row. A table without a schema gets only the general checks."""
    if not re.fullmatch(r"rlc\.[a-z]+/[0-9]+", str(table.get("schema"))):
        yield f"{name}: `schema` is {table.get('schema')!r}"
    if not month(table.get("as_of")):
        yield f"{name}: `as_of` is {table.get('as_of')!r}, which is not a date"
    parts = sections_of(table)
    schema = TABLES.get(name)
    if schema is None:
        for part, rows in parts.items():
            yield from check_generic(f"{name}.{part}", rows)
        return
    for part in parts.keys() ^ schema.keys():
        yield f"{name}.{part}: " + ("has no schema" if part in parts else "is missing")
    for part in parts.keys() & schema.keys():
        yield from check_rows(f"{name}.{part}", parts[part], schema[part])
        yield from check_provenance(name, part, table, parts[part])


def check_rows(place: str, rows: list[dict[str, Any]], section: Section) -> Iterator[str]:
    known = {**section.fields, **section.optional}
    for number, row in enumerate(rows):
        named = f"{place}[{row.get(section.key[0], number)}]"
        for missing in section.fields.keys() - row.keys():
            yield f"{named}: `{missing}` is missing"
        for stranger in row.keys() - known.keys() - set(INHERITED):
            yield f"{named}: `{stranger}` is not in the schema"
        for name, value in row.items():
            if name in known and not known[name](value):
                yield f"{named}: `{name}` is {value!r}"
    keys = Counter(str([row.get(name) for name in section.key]) for row in rows)
    yield from (f"{place}: {key} occurs {count} times" for key, count in keys.items() if count > 1)


def check_provenance(name: str, part: str, table: Mapping[str, Any], rows: list[dict[str, Any]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        found, named = provenance(table, part, row), f"{name}.{part}[{number}]"
        if not found.source:
            yield f"{named}: has no source"
        if not month(found.date):
            yield f"{named}: date is {found.date!r}"
        if found.confidence not in CONFIDENCES:
            yield f"{named}: confidence is {found.confidence!r}, not one of {', '.join(CONFIDENCES)}"


def provenance(table: Mapping[str, Any], section: str, row: Mapping[str, Any]) -> Provenance:
    """Source, date and confidence of a row, its own or inherited."""
    defaults = table.get("sections", {}).get(section, {})

    def first(key: str, of_table: str) -> str:
        return str(row.get(key) or defaults.get(key) or table.get(of_table) or "")

    return Provenance(
        source=first("source", "source"), date=first("date", "as_of"), confidence=first("confidence", "confidence")
    )


def sections_of(table: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The sections of a table that are lists of rows, by name."""
    return {name: part for name, part in table.items() if isinstance(part, list) and part and isinstance(part[0], dict)}


def check_generic(place: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    """Ids that are not unique, and patterns that do not compile."""
    ids = Counter(row.get("id") for row in rows)
    yield from (f"{place}: id {name!r} occurs {count} times" for name, count in ids.items() if count > 1 or not name)
    for row in rows:
        for pattern in row.get("patterns", ()):
            try:
                re.compile(pattern)
            except re.error as error:
                yield f"{place}[{row.get('id')}]: pattern {pattern!r} does not compile: {error}"


def main() -> int:
    faults = find_faults(read_tables())
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults" if faults else "the tables are complete and consistent", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
