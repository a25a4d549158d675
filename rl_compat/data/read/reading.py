"""Rows of a dataset: built-in names and files, their form told and said, checked before any model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rl_compat.data.builtin import arithmetic, gsm8k
from rl_compat.data.form.columns import Columns, Task
from rl_compat.data.form.conversion import CONVERTERS
from rl_compat.data.form.detection import TITLES, detect
from rl_compat.data.form.patterns import Form
from rl_compat.data.form.rows import LabelledRow, PreferenceRow, PromptRow, SupervisedRow
from rl_compat.data.form.turns import Unusable
from rl_compat.data.read.files import Record, plain, read_records
from rl_compat.data.read.locate import Split, locate
from rl_compat.errors import DataError

BadRows = Literal["error", "drop"]
Announce = Callable[[str], None]

BUILTIN_DATASETS: Mapping[str, Callable[..., list[Record]]] = {"gsm8k": gsm8k.rows, "arithmetic": arithmetic.rows}
"by name: a function of the split and the number of rows wanted"

NUM_NAMED_ROWS = 8


def _say_nothing(note: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What rows are wanted, and how their files are read."""

    task: Task
    split: Split = "train"
    columns: Columns = field(default_factory=Columns)
    bad_rows: BadRows = "error"
    announce: Announce = _say_nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRows:
    """The rows that one name in the settings stands for."""

    name: str
    rows: list[Any]
    first_row: int = 0
    num_read: int = 0
    "before rows without a usable prompt or response were left out"
    forms: tuple[Form, ...] = ()
    "of its files"
    bad: Mapping[str, list[int]] = field(default_factory=dict)
    "why rows were left out, and their numbers"


def load_rows(
    files: Sequence[str],
    *,
    split: Split = "train",
    columns: Columns = Columns(),
    max_samples: int | None = None,
    bad_rows: BadRows = "error",
    announce: Announce = _say_nothing,
) -> list[PromptRow]:
    """The prompts of all files in their order, the first `max_samples` of them; none when `files` is empty.

    A file is `gsm8k` or `arithmetic` (their `split`), a path of a data file, a pattern or a folder. `announce` is told
    what form each file was taken for. Raises DataError for a file that is missing or damaged, columns that are of no
    known form, no rows, or rows that cannot be used, which `bad_rows="drop"` leaves out instead.
    """
    reading = Reading(task="prompts", split=split, columns=columns, bad_rows=bad_rows, announce=announce)
    return [row for source in load_sources(files, reading, limits=max_samples) for row in source.rows]


def load_supervised(
    files: Sequence[str],
    *,
    split: Split = "train",
    columns: Columns = Columns(),
    max_samples: int | None = None,
    bad_rows: BadRows = "error",
    announce: Announce = _say_nothing,
) -> list[SupervisedRow]:
    """Prompts with responses to imitate, read as `load_rows` reads prompts."""
    reading = Reading(task="supervised", split=split, columns=columns, bad_rows=bad_rows, announce=announce)
    return [row for source in load_sources(files, reading, limits=max_samples) for row in source.rows]


def load_preferences(
    files: Sequence[str],
    *,
    split: Split = "train",
    columns: Columns = Columns(),
    max_samples: int | None = None,
    bad_rows: BadRows = "error",
    announce: Announce = _say_nothing,
) -> list[PreferenceRow]:
    """Prompts with a better and a worse response, read as `load_rows` reads prompts."""
    reading = Reading(task="preference", split=split, columns=columns, bad_rows=bad_rows, announce=announce)
    return [row for source in load_sources(files, reading, limits=max_samples) for row in source.rows]


def load_labelled(
    files: Sequence[str],
    *,
    split: Split = "train",
    columns: Columns = Columns(),
    max_samples: int | None = None,
    bad_rows: BadRows = "error",
    announce: Announce = _say_nothing,
) -> list[LabelledRow]:
    """Responses with a label, read as `load_rows` reads prompts; a preference pair is two of them."""
    reading = Reading(task="labelled", split=split, columns=columns, bad_rows=bad_rows, announce=announce)
    return [row for source in load_sources(files, reading, limits=max_samples) for row in source.rows]


def load_sources(
    files: Sequence[str], reading: Reading, *, limits: Sequence[int | None] | int | None = None
) -> list[SourceRows]:
    """The rows of each name in the settings; `limits` are the most rows of all of them together, or of each."""
    sources: list[SourceRows] = []
    num_read = 0
    for index, name in enumerate(files):
        if isinstance(limits, int):
            limit: int | None = limits - num_read
            if limits <= num_read:
                break
        else:
            limit = limits[index] if limits else None
        sources.append(_source(name, reading, limit, first_row=num_read))
        num_read += sources[-1].num_read
    return sources


def rows_from_records(
    records: Sequence[Mapping[str, Any]], *, name: str = "data", columns: Columns = Columns(), first_row: int = 0
) -> list[PromptRow]:
    """Rows from records as other programs hold them: numpy arrays and scalars in them become plain values."""
    if not records:
        raise DataError(f"`{name}` has no rows")
    plain_records = [plain(record) for record in records]
    form = detect(plain_records, task="prompts", columns=columns, name=name)
    rows, bad = convert_all(plain_records, form, task="prompts", split="train", first_row=first_row)
    check_usable(bad, num_rows=len(records), name=name, column=form.columns.get("prompt", "row"))
    return rows


def convert_all(
    records: Sequence[Record], form: Form, *, task: Task, split: str, first_row: int = 0, first_index: int = 0
) -> tuple[list[Any], dict[str, list[int]]]:
    """The rows that can be used, and the numbers of the others by the reason."""
    rows: list[Any] = []
    bad: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        row = CONVERTERS[task](record, form, row=first_row + index, index=first_index + index, split=split)
        if isinstance(row, Unusable):
            bad.setdefault(row.why, []).append(first_row + index)
        else:
            rows.extend(row if isinstance(row, list) else [row])
    return rows, bad


def check_usable(
    bad: Mapping[str, list[int]], *, num_rows: int, name: str, column: str, way_out: str = "`data.bad_rows=drop`"
) -> None:
    """Raise DataError when there are rows that cannot be used."""
    if bad:
        count = f"{sum(map(len, bad.values()))} of {num_rows} rows"
        raise DataError(
            f"`{column}` cannot be used in {count} of `{name}`: {name_bad(bad)}",
            hint=f"mend these rows (counted from 0), or leave them out with {way_out}",
        )


def name_bad(bad: Mapping[str, list[int]]) -> str:
    """`null in row 1; empty in rows 2, 3`."""
    return "; ".join(f"{why} in {name_rows(numbers)}" for why, numbers in bad.items())


def name_rows(numbers: Sequence[int]) -> str:
    """`row 3`, or `rows 1, 4, 5 …` with the first few of many."""
    shown = ", ".join(str(number) for number in numbers[:NUM_NAMED_ROWS])
    more = f" and {len(numbers) - NUM_NAMED_ROWS} more" if len(numbers) > NUM_NAMED_ROWS else ""
    return f"{'row' if len(numbers) == 1 else 'rows'} {shown}{more}"


def _source(name: str, reading: Reading, limit: int | None, *, first_row: int) -> SourceRows:
    rows: list[Any] = []
    bad: dict[str, list[int]] = {}
    forms: list[Form] = []
    num_read = 0
    for part, records in _parts(name, reading, limit):
        form = _form(records, reading, part, builtin=name in BUILTIN_DATASETS)
        more, worse = convert_all(records, form, task=reading.task, split=reading.split, first_row=first_row + num_read)
        if reading.bad_rows == "error":
            column = form.columns.get("prompt", TITLES[reading.task])
            check_usable(worse, num_rows=len(records), name=part, column=column)
        elif worse:
            count = f"{sum(map(len, worse.values()))} of {len(records)} rows"
            reading.announce(f"{count} of `{part}` left out: {name_bad(worse)}")
        rows += more
        for why, numbers in worse.items():
            bad.setdefault(why, []).extend(numbers)
        forms.append(form)
        num_read += len(records)
    return SourceRows(name=name, rows=rows, first_row=first_row, num_read=num_read, forms=tuple(forms), bad=bad)


def _form(records: Sequence[Record], reading: Reading, name: str, *, builtin: bool) -> Form:
    """The form of a file, said unless we wrote it ourselves."""
    if not records:
        raise DataError(f"`{name}` has no rows")
    form = detect(records, task=reading.task, columns=Columns() if builtin else reading.columns, name=name)
    if not builtin:
        reading.announce(form.sentence(name))
    return form


def _parts(name: str, reading: Reading, limit: int | None) -> list[tuple[str, list[Record]]]:
    """The records of a built-in dataset, or of each file that a name stands for, at most `limit` in all."""
    if name in BUILTIN_DATASETS:
        return [(name, _builtin(name, reading.task)(reading.split, limit=limit))]
    parts: list[tuple[str, list[Record]]] = []
    left = limit
    for path in locate(name, split=reading.split, builtins=BUILTIN_DATASETS, announce=reading.announce):
        if left is not None and left <= 0:
            break
        records = read_records(path, limit=left)
        parts.append((name if path == Path(name).expanduser() else str(path), records))
        left = None if left is None else left - len(records)
    return parts


def _builtin(name: str, task: Task) -> Callable[..., list[Record]]:
    """The records of a built-in dataset. Raises DataError when it has none for the task."""
    if task in ("prompts", "supervised"):
        return BUILTIN_DATASETS[name]
    if name == "arithmetic":
        return arithmetic.pairs
    raise DataError(f"`{name}` has no {TITLES[task]}", hint="`arithmetic` has, or name a file of your own")
