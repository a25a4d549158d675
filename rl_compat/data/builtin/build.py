"""Writes files in verl's schema from questions and answers, and from MATH."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl_compat.data.builtin import gsm8k, math_problems
from rl_compat.data.builtin.verl_schema import schema_row, write_rows
from rl_compat.data.form.columns import Record, columns_of, has_column, lookup
from rl_compat.data.read.files import is_data_file
from rl_compat.data.read.names import SPLIT_WORDS, HubName, Split, files_of_split, load_from_hub, split_of
from rl_compat.data.read.reading import check_usable
from rl_compat.data.read.records import Records, open_file, table_records
from rl_compat.errors import DataError, did_you_mean, quoted

AnswerIn = Literal["column", "hash", "boxed"]

TRUTHS: Mapping[AnswerIn, Callable[[str], str | None]] = {
    "column": lambda text: text.strip() or None,
    "hash": gsm8k.ground_truth,
    "boxed": math_problems.answer_in,
}
"from the answer to the ground truth: all of it, the number after `####`, or the content of the last box"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One written file."""

    path: Path
    num_rows: int
    num_left_out: int = 0


def build_file(
    source: Path,
    output: Path,
    *,
    question: str,
    answer: str,
    instruction: str = "",
    data_source: str | None = None,
    answer_in: AnswerIn = "column",
    split: Split = "train",
    drop: bool = False,
) -> Written:
    """Convert a file with a column of questions and a column of answers to verl's schema.

    Raises DataError for a missing column, and for rows without a question or an answer unless `drop` is set.
    """
    if output.suffix != ".parquet":
        raise DataError(f"`{output}` does not end in .parquet", hint=f"name it `{output.with_suffix('.parquet')}`")
    records = list(open_file(source, name=str(source)).read())
    _check_columns(records, (question, answer), name=str(source))
    rows: list[dict[str, Any]] = []
    bad: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        asked, answered = _text(lookup(record, question)), _text(lookup(record, answer))
        truth = TRUTHS[answer_in](answered)
        why = "no question" if not asked else "no answer" if truth is None else None
        if why is not None or truth is None:
            bad.setdefault(str(why), []).append(index)
            continue
        rows.append(
            schema_row(
                question=asked,
                instruction=instruction,
                ground_truth=truth,
                answer=answered,
                data_source=source.name.split(".")[0] if data_source is None else data_source,
                split=split,
                index=index,
            )
        )
    if not drop:
        check_usable(bad, num_rows=len(records), name=str(source), column=answer, way_out="`--drop`")
    _write(rows, output, name=str(source))
    return Written(path=output, num_rows=len(rows), num_left_out=len(records) - len(rows))


def build_math(source: str, folder: Path) -> list[Written]:
    """Write MATH, or data in its form, as `train.parquet` and `test.parquet` without rows that have no final answer.

    `source` is a file, a folder or a hub id. The name of a file tells its split, `train` by default.
    Raises DataError.
    """
    written: list[Written] = []
    for split, files in _math_files(source).items():
        records = [record for file in files for record in file.read()]
        name = ", ".join(file.name for file in files)
        _check_columns(records, ("problem", "solution"), name=name)
        found = [math_problems.from_raw(record, index, split) for index, record in enumerate(records)]
        rows = [row for row in found if row is not None]
        output = folder / f"{split}.parquet"
        _write(rows, output, name=name)
        written.append(Written(path=output, num_rows=len(rows), num_left_out=len(found) - len(rows)))
    return written


def _math_files(source: str) -> dict[Split, list[Records]]:
    path = Path(source).expanduser()
    splits: tuple[Split, ...] = ("train", "test")
    if path.is_file() or is_data_file(path):
        return {split_of(path) or "train": [open_file(path, name=str(path))]}
    if path.is_dir():
        found = {split: [open_file(file, name=str(file)) for file in files_of_split(path, split)] for split in splits}
        if not any(found.values()):
            words = quoted(word for names in SPLIT_WORDS.values() for word in names)
            raise DataError(f"no file name in `{source}` contains one of {words}", hint="name the files themselves")
        return {split: files for split, files in found.items() if files}
    hub = HubName.parse(source)
    if hub is None:
        raise DataError(f"there is no file or folder `{source}`", hint="a hub id has the form `owner/name`")
    return {split: [table_records(load_from_hub(hub, split=split, streaming=False), name=source)] for split in splits}


def _check_columns(records: Sequence[Record], wanted: Sequence[str], *, name: str) -> None:
    if not records:
        raise DataError(f"`{name}` has no rows")
    present = columns_of(records)
    for column in wanted:
        if not has_column(column, present, records):
            hint = did_you_mean(column, present, "name the columns with `--question` and `--answer`")
            raise DataError(f"`{name}` has no column `{column}`, only {quoted(present)}", hint=hint)


def _write(rows: Sequence[Mapping[str, Any]], output: Path, *, name: str) -> None:
    if not rows:
        raise DataError(f"no row of `{name}` has a question and an answer", hint="nothing was written")
    write_rows(rows, output)


def _text(value: Any) -> str:
    """A value as text, empty for null."""
    return "" if value is None else str(value).strip()
