"""The rows of every source in the settings, checked before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rl_compat.data.builtin import arithmetic, gsm8k
from rl_compat.data.form.columns import Columns, Record, Task
from rl_compat.data.form.conversion import CONVERTERS
from rl_compat.data.form.detection import TITLES, detect
from rl_compat.data.form.patterns import Form
from rl_compat.data.form.turns import Unusable
from rl_compat.data.read.file_pieces import open_file
from rl_compat.data.read.files import SUFFIXES, reading_errors
from rl_compat.data.read.hub import HubName, load_from_hub
from rl_compat.data.read.names import Split, local_files, saved_split
from rl_compat.data.read.records import Records, StreamRecords, TableRecords, WholeRecords
from rl_compat.errors import DataError, did_you_mean, quoted

BadRows = Literal["error", "drop"]
Announce = Callable[[str], None]

BUILTIN_DATASETS: Mapping[str, Callable[..., list[Record]]] = {"gsm8k": gsm8k.rows, "arithmetic": arithmetic.rows}
"by name: a function of the split and the largest number of rows"

NUM_NAMED_ROWS = 8


def _say_nothing(note: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Which rows to read, and how."""

    task: Task
    split: Split = "train"
    columns: Columns = field(default_factory=Columns)
    bad_rows: BadRows = "error"
    announce: Announce = _say_nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRows:
    """The rows of one source in the settings."""

    name: str
    rows: list[Any]
    first_row: int = 0
    num_read: int = 0
    "including the rows that cannot be used"
    forms: tuple[Form, ...] = ()
    "of its files"


def load_rows(
    sources: Sequence[str | Records],
    *,
    task: Task = "prompts",
    split: Split = "train",
    columns: Columns = Columns(),
    max_samples: int | None = None,
    bad_rows: BadRows = "error",
    announce: Announce = _say_nothing,
) -> list[Any]:
    """The rows of all sources in their order, the first `max_samples` of them, in the dataclass of the task.

    `announce` receives the detected form of each file. Raises DataError for a source that is missing, damaged
    or empty, columns of no known form, and rows that cannot be used, which `bad_rows="drop"` leaves out instead.
    """
    reading = Reading(task=task, split=split, columns=columns, bad_rows=bad_rows, announce=announce)
    return [row for source in load_sources(sources, reading, limits=max_samples) for row in source.rows]


def load_sources(
    sources: Sequence[str | Records], reading: Reading, *, limits: Sequence[int | None] | int | None = None
) -> list[SourceRows]:
    """The rows of each source; `limits` is the largest number of rows of all together, or one for each."""
    found: list[SourceRows] = []
    num_read = 0
    for index, source in enumerate(sources):
        if isinstance(limits, int):
            limit: int | None = limits - num_read
            if limits <= num_read:
                break
        else:
            limit = limits[index] if limits else None
        found.append(_source_rows(source, reading, limit, first_row=num_read))
        num_read += found[-1].num_read
    return found


def open_source(source: str | Records, reading: Reading, *, streaming: bool = False) -> list[Records]:
    """What a name in `data.train_files` stands for: each of its files, or the dataset itself.

    A dataset of the hub is downloaded to the cache of `datasets`, or read over the network with `streaming`.
    Raises DataError.
    """
    if not isinstance(source, str):
        return [source]
    if source in BUILTIN_DATASETS:
        rows = _builtin(source, reading.task)
        return [WholeRecords(source, lambda limit: rows(reading.split, limit=limit))]
    path = Path(source).expanduser()
    saved = saved_split(path, reading.split)
    if saved is not None:
        import datasets

        with reading_errors(source):
            return [TableRecords(source, datasets.load_from_disk(str(saved)))]
    hub = HubName.parse(source)
    if hub is None or hub.is_short or path.exists():
        paths = local_files(source, split=reading.split, announce=reading.announce)
        if paths:
            return [open_file(item, name=source if item == path else str(item)) for item in paths]
    if hub is None:
        raise _unknown(source)
    table = load_from_hub(hub, split=reading.split, streaming=streaming)
    return [StreamRecords(source, partial(iter, table)) if streaming else TableRecords(source, table)]


def is_builtin(source: Records) -> bool:
    return source.name in BUILTIN_DATASETS


def form_of(records: Sequence[Record], reading: Reading, source: Records) -> Form:
    """The form of a source by its first records. Raises DataError when it has none, or no records."""
    if not records:
        raise DataError(f"`{source.name}` has no rows")
    columns = Columns() if is_builtin(source) else reading.columns
    return detect(records, task=reading.task, columns=columns, name=source.name)


def convert_all(
    records: Sequence[Record], form: Form, *, task: Task, split: str, first_row: int = 0
) -> tuple[list[Any], dict[str, list[int]]]:
    """The usable rows, and the numbers of the others by reason."""
    rows: list[Any] = []
    bad: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        try:
            row = CONVERTERS[task](record, form, row=first_row + index, index=index, split=split)
            rows.extend(row if isinstance(row, list) else [row])
        except Unusable as error:
            bad.setdefault(str(error), []).append(first_row + index)
    return rows, bad


def check_usable(
    bad: Mapping[str, list[int]], *, num_rows: int, name: str, column: str, way_out: str = "`data.bad_rows=drop`"
) -> None:
    """Raise DataError when there are rows that cannot be used."""
    if bad:
        count = f"{sum(map(len, bad.values()))} of {num_rows} rows"
        raise DataError(
            f"`{column}` cannot be used in {count} of `{name}`: {name_bad(bad)}",
            hint=f"fix these rows (counted from 0), or leave them out with {way_out}",
        )


def name_bad(bad: Mapping[str, list[int]]) -> str:
    """`null in row 1; empty in rows 2, 3`."""
    return "; ".join(f"{why} in {name_rows(numbers)}" for why, numbers in bad.items())


def name_rows(numbers: Sequence[int]) -> str:
    """`row 3`, or `rows 1, 4, 5` and the number of further ones."""
    shown = ", ".join(str(number) for number in numbers[:NUM_NAMED_ROWS])
    more = f" and {len(numbers) - NUM_NAMED_ROWS} more" if len(numbers) > NUM_NAMED_ROWS else ""
    return f"{'row' if len(numbers) == 1 else 'rows'} {shown}{more}"


def _source_rows(source: str | Records, reading: Reading, limit: int | None, *, first_row: int) -> SourceRows:
    rows: list[Any] = []
    forms: list[Form] = []
    num_read = 0
    for part in open_source(source, reading):
        if limit is not None and num_read >= limit:
            break
        records = part.read_all(None if limit is None else limit - num_read)
        form = form_of(records, reading, part)
        if not is_builtin(part):
            reading.announce(form.sentence(part.name))
        more, bad = convert_all(records, form, task=reading.task, split=reading.split, first_row=first_row + num_read)
        if reading.bad_rows == "error":
            column = form.columns.get("prompt", TITLES[reading.task])
            check_usable(bad, num_rows=len(records), name=part.name, column=column)
        elif bad:
            count = f"{sum(map(len, bad.values()))} of {len(records)} rows"
            reading.announce(f"{count} of `{part.name}` left out: {name_bad(bad)}")
        rows += more
        forms.append(form)
        num_read += len(records)
    name = source if isinstance(source, str) else source.name
    return SourceRows(name=name, rows=rows, first_row=first_row, num_read=num_read, forms=tuple(forms))


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
