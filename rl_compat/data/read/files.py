"""Data files as records: the formats, and reading them through `datasets` without changing a value.

Parquet and Arrow files keep the types that they declare. JSON and CSV declare none, so `datasets` only delivers their
lines (from any compression) and each line is decoded here: type inference over a column would turn a number into text
where another row holds text, add missing keys as nulls, and hide the row of an error.
"""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import escape
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from rl_compat.data.form.columns import Record
from rl_compat.errors import DataError, quoted

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
LARGEST_CSV_FIELD = 2**27
SHOWN_NAMES = 5
BATCH_ROWS = 4096
CHUNK_CHARACTERS = 2**20


def suffix_of(path: Path) -> str:
    """`.jsonl`, or `.jsonl.gz` for a compressed file, in lower case; another suffix as it is."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if len(suffixes) > 1 and suffixes[-1] in COMPRESSIONS and suffixes[-2] in FORMATS:
        return "".join(suffixes[-2:])
    return suffixes[-1] if suffixes else ""


def is_data_file(path: Path) -> bool:
    return _format_of(path) is not None


def read_records(path: Path, *, limit: int | None = None) -> list[Record]:
    """The rows of one file, at most `limit`. Raises DataError for a file that is missing, damaged or not data."""
    check_file(path)
    form = _format_of(path)
    assert form is not None
    with reading_errors(str(path)), quiet():
        return list(islice(form.decode(_batches(path, form), str(path)), limit))


def check_file(path: Path) -> None:
    """Raise DataError for a path that is not a data file."""
    if path.is_dir():
        raise DataError(f"`{path}` is a folder, not a data file", hint=files_inside(path))
    if not is_data_file(path):
        raise DataError(f"`{path}` has no format that can be read", hint=f"use one of {SUFFIXES}")
    if not path.exists():
        raise DataError(f"data file `{path}` does not exist", hint=files_inside(path.parent))


def files_inside(folder: Path) -> str:
    """The data files in a folder, as a hint."""
    try:
        found = sorted(item.name for item in folder.iterdir() if is_data_file(item))
    except OSError:
        return f"the folder `{folder}` does not exist"
    if not found:
        return f"`{folder}` has no file with one of {SUFFIXES}"
    more = f" and {len(found) - SHOWN_NAMES} more" if len(found) > SHOWN_NAMES else ""
    return f"`{folder}` contains {quoted(found[:SHOWN_NAMES])}{more}"


def object_in(text: str, *, where: str) -> Record:
    """The JSON object in a text; `where` names its place in errors. Raises DataError."""
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is not JSON: {error.msg}") from error
    return _checked_object(record, where=where)


def without_index(table: Any) -> Any:
    """A table without the index columns that pandas adds."""
    return table.drop_columns([name for name in table.column_names if name.startswith("__index_level_")])


@contextmanager
def reading_errors(name: str) -> Iterator[None]:
    """Errors of `datasets`, Arrow, decompression and the file system as DataError that names what was read."""
    import pyarrow

    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"`{name}` is not UTF-8 text: {error}") from error
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(f"`{name}` is truncated or not a compressed file: {error}", hint="write it again") from error
    except (pyarrow.ArrowException, OSError, ValueError, RuntimeError, ImportError) as error:
        raise DataError(f"`{name}` cannot be read: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, of its cause where `datasets` wrapped it."""
    cause = error.__cause__ if type(error).__name__.startswith("DatasetGeneration") and error.__cause__ else error
    return str(cause).splitlines()[0].rstrip(".") if str(cause) else type(cause).__name__


@contextmanager
def quiet() -> Iterator[None]:
    """Without the log of `datasets`, which repeats the errors that DataError carries."""
    import datasets

    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)


def _batches(path: Path, form: FileFormat) -> Iterator[Any]:
    """The tables of a file, read as a stream: nothing is written to the cache of `datasets`, nothing asks the network.

    `load_dataset` would report its use to the hub before it opens a local file, so the builder is made directly.
    """
    module = import_module(f"datasets.packaged_modules.{form.builder.lower()}.{form.builder.lower()}")
    files = {"train": [escape(str(path.absolute()))]}
    with tempfile.TemporaryDirectory() as locks:
        builder = getattr(module, form.builder)(cache_dir=locks, data_files=files, **form.options)
        stream = builder.as_streaming_dataset(split="train")
    return iter(stream.with_format("arrow").iter(batch_size=BATCH_ROWS))


def _table_rows(tables: Iterable[Any], name: str) -> Iterator[Record]:
    return (record for table in tables for record in without_index(table).to_pylist())


def _lines(tables: Iterable[Any]) -> Iterator[str]:
    return (line for table in tables for line in table["text"].to_pylist())


def _json_lines(tables: Iterable[Any], name: str) -> Iterator[Record]:
    return _objects(_lines(tables), name)


def _objects(lines: Iterable[str], name: str) -> Iterator[Record]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield object_in(line, where=f"line {number} of `{name}`")


def _json_document(tables: Iterable[Any], name: str) -> Iterator[Record]:
    """A list of objects, or JSON lines under the name `.json`."""
    text = "".join(_lines(tables))
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            yield from _objects(text.split("\n"), name)
            return
        raise DataError(f"line {error.lineno} of `{name}` is not JSON: {error.msg}") from error
    if not isinstance(rows, list):
        raise DataError(
            f"`{name}` contains one {_kind(rows)}, not a list of rows",
            hint="write a list of objects, or one object per line in a .jsonl file",
        )
    yield from (_checked_object(row, where=f"row {index} of `{name}`") for index, row in enumerate(rows))


def _csv_rows(tables: Iterable[Any], name: str) -> Iterator[Record]:
    """Rows under the names of the header, as text; a missing or empty cell is None."""
    csv.field_size_limit(LARGEST_CSV_FIELD)
    reader = csv.reader(_lines(tables), strict=True)
    try:
        header = next(reader, [])
        for index, cells in enumerate(cells for cells in reader if cells):
            if len(cells) > len(header):
                raise DataError(f"row {index} of `{name}` has {len(cells)} cells and the header has {len(header)}")
            values = [cell or None for cell in cells] + [None] * (len(header) - len(cells))
            yield dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise DataError(f"line {reader.line_num} of `{name}` is not CSV: {error}") from error


def _text_rows(tables: Iterable[Any], name: str) -> Iterator[Record]:
    return ({"text": line} for line in _lines(tables) if line.strip())


def _checked_object(value: Any, *, where: str) -> Record:
    if not isinstance(value, dict):
        raise DataError(f"{where} is a {_kind(value)}, not an object")
    return value


def _kind(value: object) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """How files with one suffix are read."""

    builder: Literal["Parquet", "Arrow", "Text"]
    "of `datasets`"
    decode: Callable[[Iterable[Any], str], Iterator[Record]] = _table_rows
    "from the tables of the builder and the name of the file to records"
    options: Mapping[str, Any] = field(default_factory=dict)
    "of the builder"


_TEXT = {"encoding": "utf-8-sig", "chunksize": CHUNK_CHARACTERS}
FORMATS: Mapping[str, FileFormat] = {
    ".parquet": FileFormat(builder="Parquet", options={"batch_size": BATCH_ROWS}),
    ".arrow": FileFormat(builder="Arrow"),
    ".jsonl": FileFormat(builder="Text", decode=_json_lines, options=_TEXT),
    ".json": FileFormat(builder="Text", decode=_json_document, options=_TEXT | {"sample_by": "document"}),
    ".csv": FileFormat(builder="Text", decode=_csv_rows, options=_TEXT | {"keep_linebreaks": True}),
    ".txt": FileFormat(builder="Text", decode=_text_rows, options=_TEXT),
}
"by suffix; text formats may be compressed"
SUFFIXES = ", ".join(FORMATS)


def _format_of(path: Path) -> FileFormat | None:
    suffix = suffix_of(path)
    base, _, compression = suffix[1:].partition(".")
    form = FORMATS.get(f".{base}")
    return None if compression and form is not None and form.builder != "Text" else form
