"""GSM8K, shipped with the package, in the schema that verl writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet

from rl_compat.data.builtin.verl_schema import schema_row, write_rows
from rl_compat.errors import DataError

Split = Literal["train", "test"]

DATA_SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
MARKER = "####"

_FINAL_NUMBER = re.compile(r"(-?)\$?(-?)([0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)")
_MINUS_SIGNS = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"), "-")


def ground_truth(answer: str) -> str | None:
    """The number after the last `####` of a reference solution, without separators, or None.

    `#### 1,080` is `1080`, `#### 5,600.` is `5600`, and a unicode minus sign becomes `-`.
    """
    _, marker, tail = answer.rpartition(MARKER)
    match = _FINAL_NUMBER.search(tail.translate(_MINUS_SIGNS)) if marker else None
    if match is None:
        return None
    before, after, digits = match.groups()
    return ("-" if before or after else "") + digits.replace(",", "")


def row(question: str, answer: str, *, split: str, index: int) -> dict[str, Any]:
    """One row of the schema from a question and its reference solution. Raises DataError without a final number."""
    truth = ground_truth(answer)
    if truth is None:
        raise DataError(f"row {index}: the answer has no number after `{MARKER}`", hint=f"it ends `…{answer[-40:]}`")
    return schema_row(
        question=question,
        instruction=INSTRUCTION,
        ground_truth=truth,
        answer=answer,
        data_source=DATA_SOURCE,
        split=split,
        index=index,
    )


def from_raw(record: Mapping[str, Any], index: int, split: str) -> dict[str, Any] | None:
    """A row of the schema from a record with `question` and `answer`; None when the answer has no final number."""
    question, answer = record.get("question"), str(record.get("answer"))
    usable = isinstance(question, str) and bool(question.strip()) and ground_truth(answer) is not None
    return row(str(question), answer, split=split, index=index) if usable else None


def raw_records(split: Split, *, limit: int | None = None) -> list[dict[str, str]]:
    """The shipped questions and reference solutions: 7,473 for training, 1,319 for testing."""
    with as_file(files("rl_compat.data.builtin") / "gsm8k_files" / f"{split}.parquet") as path:
        table = pyarrow.parquet.ParquetFile(path).read()
    records: list[dict[str, str]] = table.slice(0, limit).to_pylist()
    return records


def rows(split: Split, *, limit: int | None = None) -> list[dict[str, Any]]:
    """The shipped split in the schema."""
    records = enumerate(raw_records(split, limit=limit))
    return [row(item["question"], item["answer"], split=split, index=index) for index, item in records]


def write(folder: Path) -> dict[Split, tuple[Path, int]]:
    """Write `train.parquet` and `test.parquet`; the path and number of rows of each split. Raises DataError."""
    written: dict[Split, tuple[Path, int]] = {}
    splits: tuple[Split, ...] = ("train", "test")
    for split in splits:
        found = rows(split)
        write_rows(found, folder / f"{split}.parquet")
        written[split] = (folder / f"{split}.parquet", len(found))
    return written
