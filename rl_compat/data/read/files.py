"""Reading data files: parquet, JSON, JSON lines and CSV as plain Python records."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO, cast

from rl_compat.errors import DataError

Record = dict[str, Any]
SUFFIXES = (".parquet", ".json", ".jsonl", ".jsonl.gz", ".json.gz", ".csv")
LARGEST_CSV_FIELD = 2**27
SHOWN_NAMES = 5
BATCH_ROWS = 4096


def suffix_of(path: Path) -> str:
    """`.jsonl`, or `.jsonl.gz` for a compressed one, in lower case."""
    name = path.name.lower()
    return next((suffix for suffix in sorted(SUFFIXES, key=len, reverse=True) if name.endswith(suffix)), path.suffix)


def read_records(path: Path, *, limit: int | None = None) -> list[Record]:
    """The rows of one file, at most `limit`. Raises DataError for a file that is missing, damaged or not data."""
    check_file(path)
    try:
        records = _READERS[suffix_of(path).removesuffix(".gz")](path, limit)
    except UnicodeDecodeError as error:
        raise DataError(f"data file `{path}` is not UTF-8 text: {error}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"`{path}` is not a whole gzip file: {error}", hint="write or fetch it again") from error
    except OSError as error:
        raise DataError(f"data file `{path}` cannot be read: {error}") from error
    return [plain(record) for record in records]


def check_file(path: Path) -> None:
    """Raise DataError for a path that is no data file."""
    if path.is_dir():
        raise DataError(f"`{path}` is a folder, not a data file", hint=files_inside(path))
    if suffix_of(path) not in SUFFIXES:
        raise DataError(f"`{path}` is not a data file that can be read", hint=f"use one of {', '.join(SUFFIXES)}")
    if not path.exists():
        raise DataError(f"data file `{path}` does not exist", hint=files_inside(path.parent))


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


def from_line(line: str, *, path: Path, number: int | None = None, row: int | None = None) -> Record:
    """The object in one line of JSON, known by the number of its line or of its row. Raises DataError."""
    where = f"row {row}" if number is None else f"line {number}"
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where} of `{path}` is not JSON: {error.msg}") from error
    if not isinstance(record, dict):
        raise DataError(f"{where} of `{path}` is a {_kind(record)}, not an object")
    return record


def not_parquet(path: Path, error: Exception) -> DataError:
    return DataError(f"`{path}` is not a parquet file: {_first_line(error)}", hint="write or fetch it again")


def files_inside(folder: Path) -> str:
    """What data lies in a folder, as a hint."""
    try:
        found = sorted(item.name for item in folder.iterdir() if suffix_of(item) in SUFFIXES)
    except OSError:
        return f"the folder `{folder}` does not exist"
    if not found:
        return f"no {', '.join(SUFFIXES)} lies in `{folder}`"
    more = f" and {len(found) - SHOWN_NAMES} more" if len(found) > SHOWN_NAMES else ""
    return f"in `{folder}` there are {', '.join(f'`{name}`' for name in found[:SHOWN_NAMES])}{more}"


def _read_parquet(path: Path, limit: int | None) -> list[Any]:
    import pyarrow
    import pyarrow.parquet

    rows: list[Any] = []
    try:
        file = pyarrow.parquet.ParquetFile(path)
        if limit is None:
            rows = without_index(file.read()).to_pylist()
        else:
            for batch in file.iter_batches(batch_size=max(1, min(limit, BATCH_ROWS))):
                rows += without_index(pyarrow.Table.from_batches([batch])).slice(0, limit - len(rows)).to_pylist()
                if len(rows) >= limit:
                    break
    except pyarrow.ArrowInvalid as error:
        raise not_parquet(path, error) from error
    return rows


def without_index(table: Any) -> Any:
    """A table without the index that pandas wrote beside the columns."""
    return table.drop_columns([name for name in table.column_names if name.startswith("__index_level_")])


def _read_json(path: Path, limit: int | None) -> list[Any]:
    with _text(path) as file:
        text = file.read()
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
    with _text(path) as file:
        for number, line in enumerate(file, start=1):
            if limit is not None and len(rows) >= limit:
                break
            if line.strip():
                rows.append(from_line(line, path=path, number=number))
    return rows


def _read_csv(path: Path, limit: int | None) -> list[Any]:
    """Rows under the header's names, as text; a missing or empty cell is null."""
    csv.field_size_limit(LARGEST_CSV_FIELD)
    with _text(path) as file:
        try:
            return list(_csv_rows(csv.reader(file, strict=True), path, limit))
        except csv.Error as error:
            raise DataError(f"`{path}` is not CSV: {error}") from error


def _csv_rows(lines: Iterator[list[str]], path: Path, limit: int | None) -> Iterator[Record]:
    header = next(lines, [])
    for index, cells in enumerate(line for line in lines if line):
        if limit is not None and index >= limit:
            return
        if len(cells) > len(header):
            raise DataError(f"row {index} of `{path}` has {len(cells)} cells and the header names {len(header)}")
        values = [cell or None for cell in cells] + [None] * (len(header) - len(cells))
        yield dict(zip(header, values, strict=True))


def _text(path: Path) -> TextIO:
    """The file as UTF-8 text, decompressed, without a byte order mark."""
    if path.name.lower().endswith(".gz"):
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8-sig", newline=""))
    return path.open(encoding="utf-8-sig", newline="")


_READERS = {".parquet": _read_parquet, ".json": _read_json, ".jsonl": _read_jsonl, ".csv": _read_csv}


def _kind(value: object) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
