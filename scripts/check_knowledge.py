#!/usr/bin/env python3
"""Check that the tables of doctor/knowledge are complete and consistent with each other, the rules and pyproject.toml.

Standard library alone: `python3 scripts/check_knowledge.py`. Prints one fault a line; exit code 1 when there is one.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import knowledge_rules  # noqa: E402
from knowledge_schema import INHERITED, TABLES, Section, month  # noqa: E402

from rl_compat.doctor.tables.rows import CONFIDENCES, provenance, sections_of  # noqa: E402

Tables = Mapping[str, Mapping[str, Any]]


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
