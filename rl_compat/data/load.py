"""Rows of a dataset: built-in names and files, checked before any model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl_compat.data import arithmetic, gsm8k
from rl_compat.data.files import SUFFIXES, Record, columns_of, plain, read_records
from rl_compat.data.records import ChatMessages, Row
from rl_compat.errors import DataError, nearest

BUILTIN_DATASETS: Mapping[str, Callable[..., list[Record]]] = {"gsm8k": gsm8k.rows, "arithmetic": arithmetic.rows}
"by name: a function of the split and the number of rows wanted"

NUM_NAMED_ROWS = 8


def load_rows(
    files: Sequence[str],
    *,
    split: Literal["train", "test"] = "train",
    prompt_key: str = "prompt",
    max_samples: int | None = None,
    announce: Callable[[str], None] = lambda note: None,
) -> list[Row]:
    """The rows of all files in their order, the first `max_samples` of them; none when `files` is empty.

    A file is `gsm8k` or `arithmetic` (their `split`), or the path of a .parquet, .json or .jsonl. The prompt column
    holds chat messages or plain text. `announce` is told what was converted. Raises DataError for a file that is
    missing or damaged, a missing prompt column, no rows, or prompts that are empty.
    """
    rows: list[Row] = []
    for name in files:
        left = None if max_samples is None else max_samples - len(rows)
        if left is not None and left <= 0:
            break
        records = _records_of(name, split=split, prompt_key=prompt_key, limit=left, announce=announce)
        key = "prompt" if name in BUILTIN_DATASETS else prompt_key
        rows.extend(rows_from_records(records, name=name, prompt_key=key, first_row=len(rows)))
    return rows


def rows_from_records(
    records: Sequence[Mapping[str, Any]], *, name: str = "data", prompt_key: str = "prompt", first_row: int = 0
) -> list[Row]:
    """Rows from records as other programs hold them: numpy arrays and scalars in them become plain values."""
    if not records:
        raise DataError(f"`{name}` has no rows")
    _check_prompt_column(records, name=name, prompt_key=prompt_key)
    prompts = [_prompt(plain(record.get(prompt_key))) for record in records]
    _check_prompts(prompts, name=name, prompt_key=prompt_key)
    return [
        _row(plain(record), prompt=prompt, prompt_key=prompt_key, row=first_row + index)
        for index, (record, prompt) in enumerate(zip(records, prompts, strict=True))
        if not isinstance(prompt, _Unusable)
    ]


def name_rows(numbers: Sequence[int]) -> str:
    """`row 3`, or `rows 1, 4, 5 …` with the first few of many."""
    shown = ", ".join(str(number) for number in numbers[:NUM_NAMED_ROWS])
    more = f" and {len(numbers) - NUM_NAMED_ROWS} more" if len(numbers) > NUM_NAMED_ROWS else ""
    return f"{'row' if len(numbers) == 1 else 'rows'} {shown}{more}"


def _records_of(
    name: str, *, split: str, prompt_key: str, limit: int | None, announce: Callable[[str], None]
) -> list[Record]:
    if name in BUILTIN_DATASETS:
        return BUILTIN_DATASETS[name](split, limit=limit)
    path = Path(name).expanduser()
    if path.suffix.lower() not in SUFFIXES and not path.exists():
        close = nearest(name, BUILTIN_DATASETS)
        hint = f"did you mean `{close}`" if close else f"use {_builtin_names()}, or a path of {', '.join(SUFFIXES)}"
        raise DataError(f"there is no dataset or file `{name}`", hint=hint)
    records = read_records(path, limit=limit)
    if _is_raw_gsm8k(records, prompt_key):
        announce(
            f"`{name}` looks like raw GSM8K (columns `question`, `answer`): prompts and ground truths built from it"
        )
        return gsm8k.rows_from_raw(records, split=split)
    return records


def _is_raw_gsm8k(records: Sequence[Record], prompt_key: str) -> bool:
    columns = columns_of(records)
    return prompt_key not in columns and all(
        isinstance(record.get("question"), str) and gsm8k.MARKER in str(record.get("answer")) for record in records
    )


def _check_prompt_column(records: Sequence[Mapping[str, Any]], *, name: str, prompt_key: str) -> None:
    columns = columns_of(records)
    if prompt_key in columns:
        return
    close = nearest(prompt_key, columns)
    use = f"set `data.prompt_key={close}`" if close else "name the column with `data.prompt_key`"
    if {"question", "answer"} <= set(columns):
        use = f"it has questions and answers: {use}, or end each answer with `{gsm8k.MARKER} <number>` as GSM8K does"
    raise DataError(
        f"`{name}` has no column `{prompt_key}`: it has {', '.join(f'`{column}`' for column in columns)}", hint=use
    )


@dataclass(frozen=True, slots=True)
class _Unusable:
    why: str


def _prompt(value: Any) -> str | ChatMessages | _Unusable:
    if value is None:
        return _Unusable("null")
    if isinstance(value, str):
        return value if value.strip() else _Unusable("empty")
    if not isinstance(value, list):
        return _Unusable(f"neither text nor chat messages but {type(value).__name__}")
    if not value:
        return _Unusable("empty")
    if not all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in value):
        return _Unusable("a list of something else than messages with `role` and `content`")
    if not any(message.get("content") for message in value):
        return _Unusable("empty")
    return [_without_nulls(message) for message in value]


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    """A message as it was before a table gave every row the same fields."""
    return {key: _drop_nulls(value) for key, value in message.items() if value is not None or key == "content"}


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_nulls(item) for key, item in value.items() if item is not None}
    return [_drop_nulls(item) for item in value] if isinstance(value, list) else value


def _check_prompts(prompts: Sequence[Any], *, name: str, prompt_key: str) -> None:
    bad: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        if isinstance(prompt, _Unusable):
            bad.setdefault(prompt.why, []).append(index)
    if bad:
        count = sum(map(len, bad.values()))
        kinds = "; ".join(f"{why} in {name_rows(numbers)}" for why, numbers in bad.items())
        raise DataError(
            f"`{prompt_key}` cannot be used in {count} of {len(prompts)} rows of `{name}`: {kinds}",
            hint="remove or mend these rows (counted from 0)",
        )


def _row(record: Record, *, prompt: str | ChatMessages, prompt_key: str, row: int) -> Row:
    known = {prompt_key, "data_source", "reward_model", "extra_info"}
    reward_model, extra_info = record.get("reward_model"), record.get("extra_info")
    truth = reward_model.get("ground_truth") if isinstance(reward_model, dict) else None
    if truth is None:
        truth = record["ground_truth"] if record.get("ground_truth") is not None else record.get("answer")
    others = {key: value for key, value in record.items() if key not in known}
    return Row(
        prompt=prompt,
        data_source=str(record.get("data_source") or ""),
        ground_truth=truth,
        extra_info=others | (extra_info if isinstance(extra_info, dict) else {}),
        row=row,
    )


def _builtin_names() -> str:
    return " or ".join(f"`{name}`" for name in BUILTIN_DATASETS)
