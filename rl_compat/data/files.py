"""Reading data files: parquet, JSON and JSON lines as plain Python records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rl_compat.errors import DataError

Record = dict[str, Any]
SUFFIXES = (".parquet", ".json", ".jsonl")


def read_records(path: Path, *, limit: int | None = None) -> list[Record]:
    """The rows of one file, at most `limit`. Raises DataError for a file that is missing, damaged or not data."""
    if path.is_dir():
        raise DataError(f"`{path}` is a folder, not a data file", hint=_files_inside(path))
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"`{path}` is not a data file that can be read", hint=f"use one of {', '.join(SUFFIXES)}")
    if not path.exists():
        raise DataError(f"data file `{path}` does not exist", hint=_files_inside(path.parent))
    try:
        records = _READERS[path.suffix.lower()](path, limit)
    except OSError as error:
        raise DataError(f"data file `{path}` cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"data file `{path}` is not UTF-8 text: {error}") from error
    return [plain(record) for record in records]


def columns_of(records: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The keys of all records, in the order in which they appear."""
    return tuple(dict.fromkeys(key for record in records for key in record))


def plain(value: Any) -> Any:
    """Nested values as plain dict, list, str, bool and numbers; arrays become lists, whatever their shape."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return value


def _read_parquet(path: Path, limit: int | None) -> list[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path).read()
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"`{path}` is not a parquet file: {_first_line(error)}") from error
    rows: list[Any] = table.slice(0, limit).to_pylist()
    return rows


def _read_json(path: Path, limit: int | None) -> list[Any]:
    text = path.read_text(encoding="utf-8")
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return _read_jsonl(path, limit)
        raise DataError(f"`{path}` is not JSON: {error.msg} in line {error.lineno}") from error
    if not isinstance(rows, list):
        raise DataError(
            f"`{path}` holds one {_kind(rows)}, not a list of rows",
            hint="write a list of objects, or one object per line in a .jsonl file",
        )
    for index, row in enumerate(rows[:limit]):
        if not isinstance(row, dict):
            raise DataError(f"row {index} of `{path}` is a {_kind(row)}, not an object")
    return rows[:limit]


def _read_jsonl(path: Path, limit: int | None) -> list[Any]:
    rows: list[Any] = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if limit is not None and len(rows) >= limit:
                break
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"line {number} of `{path}` is not JSON: {error.msg}") from error
            if not isinstance(row, dict):
                raise DataError(f"line {number} of `{path}` is a {_kind(row)}, not an object")
            rows.append(row)
    return rows


_READERS = {".parquet": _read_parquet, ".json": _read_json, ".jsonl": _read_jsonl}


def _kind(value: object) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__


def _files_inside(folder: Path) -> str:
    try:
        found = sorted(item.name for item in folder.iterdir() if item.suffix.lower() in SUFFIXES)
    except OSError:
        return f"the folder `{folder}` does not exist"
    if not found:
        return f"no {', '.join(SUFFIXES)} lies in `{folder}`"
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return f"in `{folder}` there are {', '.join(f'`{name}`' for name in found[:5])}{more}"
