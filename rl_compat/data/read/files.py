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
from pathlib import Path
from typing import Any, Literal

from rl_compat.data.form.columns import Record
from rl_compat.errors import DataError, quoted

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
LARGEST_CSV_FIELD = 2**27
SHOWN_NAMES = 5
BATCH_ROWS = 256
READ_BYTES = CHUNK_CHARACTERS = 2**20
COMPRESSION_RATIO = 4
"assumed for compressed text"


def suffix_of(path: Path) -> str:
    """`.jsonl`, or `.jsonl.gz` for a compressed file, in lower case; another suffix as it is."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if len(suffixes) > 1 and suffixes[-1] in COMPRESSIONS and suffixes[-2] in FORMATS:
        return "".join(suffixes[-2:])
    return suffixes[-1] if suffixes else ""


def is_data_file(path: Path) -> bool:
    return _format_of(path) is not None


def records_in(path: Path, name: str) -> Iterator[Record]:
    """The rows of a file, read as a stream: nothing is written to the cache of `datasets`, nothing asks the network.

    `load_dataset` would report its use to the hub before it opens a local file, so the builder is made directly.
    """
    form = _format_of(path)
    assert form is not None
    if form.builder is None:
        return rows_of(_parquet_tables(path))
    module = import_module(f"datasets.packaged_modules.{form.builder.lower()}.{form.builder.lower()}")
    files = {"train": [escape(str(path.absolute()))]}
    with tempfile.TemporaryDirectory() as locks:
        builder = getattr(module, form.builder)(cache_dir=locks, data_files=files, **form.options)
        stream = builder.as_streaming_dataset(split="train")
    return form.decode(stream.with_format("arrow").iter(batch_size=BATCH_ROWS), name)


def _parquet_tables(path: Path) -> Iterator[Any]:
    """A file a few rows at a time; the streams of `datasets` decode a whole row group, which may be the whole file."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
            yield pyarrow.Table.from_batches([batch])


def uncompressed_bytes(path: Path, name: str) -> int:
    """About the size of the rows of a file. Raises DataError for parquet that cannot be read."""
    import pyarrow.parquet

    if suffix_of(path) != ".parquet":
        return path.stat().st_size * (COMPRESSION_RATIO if suffix_of(path).count(".") > 1 else 1)
    with reading_errors(name):
        metadata = pyarrow.parquet.read_metadata(path)
    return sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))


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


def rows_of(tables: Iterable[Any]) -> Iterator[Record]:
    """The rows of Arrow tables, without the index columns that pandas adds."""
    for table in tables:
        yield from table.drop_columns(
            [key for key in table.column_names if key.startswith("__index_level_")]
        ).to_pylist()


@contextmanager
def reading_errors(name: str) -> Iterator[None]:
    """Errors of `datasets`, Arrow, decompression and the file system as DataError that names what was read.

    The log of `datasets`, which repeats them, is silent meanwhile.
    """
    import datasets
    import pyarrow

    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"`{name}` is not UTF-8 text: {error}") from error
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(f"`{name}` is truncated or not a compressed file: {error}", hint="write it again") from error
    except (pyarrow.ArrowException, OSError, ValueError, RuntimeError, ImportError) as error:
        raise DataError(f"`{name}` cannot be read: {first_line(error)}") from error
    finally:
        datasets.logging.set_verbosity(level)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, of its cause where `datasets` wrapped it."""
    cause = error.__cause__ if type(error).__name__.startswith("DatasetGeneration") and error.__cause__ else error
    return str(cause).splitlines()[0].rstrip(".") if str(cause) else type(cause).__name__


def _lines(tables: Iterable[Any]) -> Iterator[str]:
    return (line for table in tables for line in table["text"].to_pylist())


def _objects(lines: Iterable[str], name: str) -> Iterator[Record]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"line {number} of `{name}`"
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{where} is not JSON: {error.msg}") from error
            yield _checked_object(record, where=where)


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

    builder: Literal["Arrow", "Text"] | None
    "of `datasets`; None for parquet"
    decode: Callable[[Iterable[Any], str], Iterator[Record]] = lambda tables, name: rows_of(tables)
    "from the tables of the builder and the name of the file to records"
    options: Mapping[str, Any] = field(default_factory=dict)
    "of the builder"


_TEXT = {"encoding": "utf-8-sig", "chunksize": CHUNK_CHARACTERS}
FORMATS: Mapping[str, FileFormat] = {
    ".parquet": FileFormat(builder=None),
    ".arrow": FileFormat(builder="Arrow"),
    ".jsonl": FileFormat(builder="Text", decode=lambda tables, name: _objects(_lines(tables), name), options=_TEXT),
    ".json": FileFormat(builder="Text", decode=_json_document, options=_TEXT | {"sample_by": "document"}),
    ".csv": FileFormat(builder="Text", decode=_csv_rows, options=_TEXT | {"keep_linebreaks": True}),
    ".txt": FileFormat(
        builder="Text",
        decode=lambda tables, name: ({"text": line} for line in _lines(tables) if line.strip()),
        options=_TEXT,
    ),
}
"by suffix; text formats may be compressed"
SUFFIXES = ", ".join(FORMATS)


def _format_of(path: Path) -> FileFormat | None:
    suffix = suffix_of(path)
    base, _, compression = suffix[1:].partition(".")
    form = FORMATS.get(f".{base}")
    return None if compression and form is not None and form.builder != "Text" else form
