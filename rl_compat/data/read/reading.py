"""The rows of every source in the settings, checked before a model is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from rl_compat.data.builtin import arithmetic, gsm8k
from rl_compat.data.form.columns import Columns, Record, Task
from rl_compat.data.form.conversion import CONVERTERS
from rl_compat.data.form.detection import TITLES, detect
from rl_compat.data.form.patterns import Form
from rl_compat.data.form.turns import Unusable
from rl_compat.data.order.fingerprint import Fingerprint
from rl_compat.data.read.files import SUFFIXES, reading_errors
from rl_compat.data.read.names import HubName, Split, load_from_hub, local_files, saved_split
from rl_compat.data.read.records import Records, RowsOnDisk, open_file, table_records
from rl_compat.errors import DataError, did_you_mean, quoted

BadRows = Literal["error", "drop"]
Announce = Callable[[str], None]

BUILTIN_DATASETS: Mapping[str, Callable[..., list[Record]]] = {"gsm8k": gsm8k.rows, "arithmetic": arithmetic.rows}
"by name: a function of the split and the largest number of rows"

NUM_NAMED_ROWS = 8
NUM_FIRST_RECORDS = 4096
"that show the columns of a file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Which rows to read, and how."""

    task: Task
    split: Split = "train"
    columns: Columns = field(default_factory=Columns)
    bad_rows: BadRows = "error"
    announce: Announce = lambda note: None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRows:
    """Where the rows of one source in the settings are."""

    name: str
    first_row: int
    "the number of its first row, counted over all sources with the rows that cannot be used"
    num_rows: int
    "that can be used"
    forms: tuple[Form, ...]
    "of its files"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRows:
    """The usable rows of all sources, in memory or on disk."""

    rows: Sequence[Any]
    sources: tuple[SourceRows, ...]
    fingerprint: Fingerprint


def load_rows(
    sources: Sequence[str | Records],
    *,
    task: Task = "prompts",
    split: Split = "train",
    columns: Columns = Columns(),
    max_samples: int | None = None,
    bad_rows: BadRows = "error",
    announce: Announce = lambda note: None,
) -> list[Any]:
    """The rows of all sources in their order, the first `max_samples` of them, in the dataclass of the task.

    `announce` receives the detected form of each file. Raises DataError for a source that is missing, damaged
    or empty, columns of no known form, and rows that cannot be used, which `bad_rows="drop"` leaves out instead.
    """
    reading = Reading(task=task, split=split, columns=columns, bad_rows=bad_rows, announce=announce)
    return list(load_sources(sources, reading, limits=max_samples).rows)


def load_sources(
    sources: Sequence[str | Records],
    reading: Reading,
    *,
    limits: Sequence[int | None] | int | None = None,
    on_disk: bool = False,
) -> LoadedRows:
    """The rows of each source; `limits` is the largest number of rows of all together, or one for each."""
    rows: RowsOnDisk | list[Any] = RowsOnDisk() if on_disk else []
    found: list[SourceRows] = []
    num_read = 0
    for index, source in enumerate(sources):
        limit = limits - num_read if isinstance(limits, int) else limits[index] if limits else None
        if limit is not None and limit <= 0:
            break
        first_row, num_before, forms = num_read, len(rows), []
        for file in open_source(source, reading, streaming=on_disk):
            left = None if limit is None else limit - (num_read - first_row)
            if left is not None and left <= 0:
                break
            form, num_more = _read_into(rows, file, reading, limit=left, first_row=num_read)
            num_read += num_more
            forms.append(form)
        name = source if isinstance(source, str) else source.name
        num_rows = len(rows) - num_before
        found.append(SourceRows(name=name, first_row=first_row, num_rows=num_rows, forms=tuple(forms)))
    return LoadedRows(rows=rows, sources=tuple(found), fingerprint=Fingerprint(rows))


def open_source(source: str | Records, reading: Reading, *, streaming: bool = False) -> list[Records]:
    """What a name in `data.train_files` stands for: each of its files, or the dataset itself.

    A dataset of the hub is downloaded to the cache of `datasets`, or read over the network with `streaming`.
    Raises DataError.
    """
    if not isinstance(source, str):
        return [source]
    if source in BUILTIN_DATASETS:
        rows = _builtin(source, reading.task)
        return [Records(name=source, begin=lambda: rows(reading.split))]
    path = Path(source).expanduser()
    saved = saved_split(path, reading.split)
    if saved is not None:
        import datasets

        with reading_errors(source):
            return [table_records(datasets.load_from_disk(str(saved)), name=source)]
    hub = HubName.parse(source)
    if hub is None or hub.is_short or path.exists():
        paths = local_files(source, split=reading.split, announce=reading.announce)
        if paths:
            return [open_file(item, name=source if item == path else str(item)) for item in paths]
    if hub is None:
        raise _unknown(source)
    if streaming:
        stream = load_from_hub(hub, split=reading.split, streaming=True)
        return [Records(name=source, begin=partial(iter, stream), num_bytes=math.inf)]
    return [table_records(load_from_hub(hub, split=reading.split, streaming=False), name=source)]


def open_files(
    names: Sequence[tuple[str, Split]], *, task: Task, columns: Columns, announce: Announce
) -> list[tuple[Records, Reading, Form]]:
    """The files of all names by their first rows; none is read to its end. Raises DataError."""
    opened = []
    for name, split in names:
        reading = Reading(task=task, split=split, columns=columns, announce=announce)
        files = open_source(name, reading)
        try:
            opened += [(file, reading, open_rows(file, reading)[0]) for file in files]
        except DataError as error:
            if len(files) > 1:
                hint = f"`{name}` stands for {len(files)} files: name those that hold the data"
                raise DataError(error.message, hint=hint) from error
            raise
    return opened


def open_rows(file: Records, reading: Reading, *, limit: int | None = None) -> tuple[Form, Iterator[Record]]:
    """The form of a file by its first records, and all its records. Raises DataError."""
    records = file.read(limit)
    first = list(islice(records, NUM_FIRST_RECORDS))
    if not first:
        raise DataError(f"`{file.name}` has no rows")
    columns = Columns() if file.name in BUILTIN_DATASETS else reading.columns
    return detect(first, task=reading.task, columns=columns, name=file.name), chain(first, records)


def check_usable(
    bad: Mapping[str, list[int]],
    *,
    num_rows: int,
    name: str,
    column: str,
    way_out: str = "`data.bad_rows=drop`",
    hint: str | None = None,
) -> None:
    """Raise DataError when there are rows that cannot be used. `hint` says how to fix them."""
    if bad:
        count = f"{sum(map(len, bad.values()))} of {num_rows} rows"
        raise DataError(
            f"`{column}` cannot be used in {count} of `{name}`: {name_bad(bad)}",
            hint=f"{hint or 'fix these rows (counted from 0)'}, or leave them out with {way_out}",
        )


def name_bad(bad: Mapping[str, list[int]]) -> str:
    """`null in row 1; empty in rows 2, 3`."""
    return "; ".join(f"{why} in {name_rows(numbers)}" for why, numbers in bad.items())


def name_rows(numbers: Sequence[int]) -> str:
    """`row 3`, or `rows 1, 4, 5` and the number of further ones."""
    shown = ", ".join(str(number) for number in numbers[:NUM_NAMED_ROWS])
    more = f" and {len(numbers) - NUM_NAMED_ROWS} more" if len(numbers) > NUM_NAMED_ROWS else ""
    return f"{'row' if len(numbers) == 1 else 'rows'} {shown}{more}"


def _read_into(
    rows: RowsOnDisk | list[Any], file: Records, reading: Reading, *, limit: int | None, first_row: int
) -> tuple[Form, int]:
    """Append the usable rows of a file; its form and the number of all its rows. Raises DataError."""
    form, records = open_rows(file, reading, limit=limit)
    if file.name not in BUILTIN_DATASETS:
        reading.announce(form.sentence(file.name))
    convert = CONVERTERS[reading.task]
    bad: dict[str, list[int]] = {}
    count = 0
    for record in records:
        try:
            found = convert(record, form, row=first_row + count, index=count, split=reading.split)
            for row in found if isinstance(found, list) else [found]:
                rows.append(row)
        except Unusable as error:
            bad.setdefault(str(error), []).append(first_row + count)
        count += 1
    if reading.bad_rows == "error":
        check_usable(bad, num_rows=count, name=file.name, column=form.columns.get("prompt", TITLES[reading.task]))
    elif bad:
        left_out = f"{sum(map(len, bad.values()))} of {count} rows"
        reading.announce(f"{left_out} of `{file.name}` left out: {name_bad(bad)}")
    return form, count


def _builtin(name: str, task: Task) -> Callable[..., list[Record]]:
    """The records of a built-in dataset. Raises DataError when it has none for the task."""
    if task in ("prompts", "supervised"):
        return BUILTIN_DATASETS[name]
    if name == "arithmetic":
        return arithmetic.pairs
    raise DataError(f"`{name}` has no {TITLES[task]}", hint="use `arithmetic`, or name a file of your own")


def _unknown(name: str) -> DataError:
    otherwise = f"use {quoted(BUILTIN_DATASETS)}, a hub id `owner/name`, or a path ending in {SUFFIXES}"
    return DataError(f"there is no dataset or file `{name}`", hint=did_you_mean(name, BUILTIN_DATASETS, otherwise))
