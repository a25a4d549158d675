"""The parquet schema of verl for questions with verifiable answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from rl_compat.errors import DataError

SCHEMA = pyarrow.schema(
    [
        ("data_source", pyarrow.string()),
        ("prompt", pyarrow.list_(pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())]))),
        ("ability", pyarrow.string()),
        ("reward_model", pyarrow.struct([("style", pyarrow.string()), ("ground_truth", pyarrow.string())])),
        (
            "extra_info",
            pyarrow.struct(
                [
                    ("split", pyarrow.string()),
                    ("index", pyarrow.int64()),
                    ("answer", pyarrow.string()),
                    ("question", pyarrow.string()),
                ]
            ),
        ),
    ]
)


def schema_row(
    *, question: str, instruction: str, ground_truth: str, answer: str, data_source: str, split: str, index: int
) -> dict[str, Any]:
    """One row: the question and the instruction as a user turn, and the whole answer in `extra_info`."""
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": f"{question} {instruction}" if instruction else question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {"split": split, "index": index, "answer": answer, "question": question},
    }


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write atomically: to a temporary file that is then renamed. Raises DataError."""
    table = pyarrow.Table.from_pylist(list(rows), schema=SCHEMA)
    unfinished = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            pyarrow.parquet.write_table(table, unfinished)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot write to `{path.parent}`: {error.strerror or error}", hint="choose another folder with `--output`"
        ) from error
