"""Prompts as tokens: the chat template, encoding, and the length limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rl_compat.data.form.rows import PromptRow
from rl_compat.data.read.reading import name_rows
from rl_compat.errors import DataError, ModelError, RLCompatError
from rl_compat.trajectory import Prompt
from rl_compat.units import counted

Overlong = Literal["filter", "error", "left", "right", "middle"]


class PromptEncoder(Protocol):
    """Applies the chat template and tokenizes."""

    def encode(self, prompt: str | list[dict[str, Any]]) -> tuple[str, list[int]]:
        """The templated text, and its token ids."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """Encoded prompts, and what happened to the rows."""

    prompts: tuple[Prompt, ...]
    notes: tuple[str, ...] = ()
    "about dropped and cut rows"


def build_prompts(
    rows: Sequence[PromptRow], *, chat: PromptEncoder, max_prompt_length: int, overlong: Overlong = "filter"
) -> PromptSet:
    """Encode every row once; the rollout and the update use the same ids.

    A prompt of exactly `max_prompt_length` tokens is kept. `filter` drops longer ones; `error` stops; `left` keeps the
    last `max_prompt_length` tokens, `right` the first, `middle` half of them (rounded down) from the start and the
    rest from the end. `Prompt.text` keeps the whole text. Raises DataError when no row is left, and for a row
    without tokens.
    """
    prompts: list[Prompt] = []
    too_long: list[tuple[int, int]] = []
    for row in rows:
        prompt, length = encode_row(row, chat=chat, max_prompt_length=max_prompt_length, overlong=overlong)
        if length > max_prompt_length:
            too_long.append((row.row, length))
        if prompt is not None:
            prompts.append(prompt)
    _check_lengths(too_long, num_rows=len(rows), limit=max_prompt_length, overlong=overlong)
    notes = _notes(too_long, num_rows=len(rows), limit=max_prompt_length, overlong=overlong)
    return PromptSet(prompts=tuple(prompts), notes=notes)


def encode_row(
    row: PromptRow, *, chat: PromptEncoder, max_prompt_length: int, overlong: Overlong
) -> tuple[Prompt | None, int]:
    """The prompt, None where it is dropped, and its number of tokens before any cut. Raises DataError."""
    text, token_ids = _encode(row, chat)
    length = len(token_ids)
    if length > max_prompt_length:
        if overlong == "filter" or overlong == "error":
            return None, length
        token_ids = cut(token_ids, max_prompt_length, keep=overlong)
    return _prompt(row, text, token_ids), length


def cut(token_ids: Sequence[int], length: int, *, keep: Literal["left", "right", "middle"]) -> list[int]:
    """At most `length` of the tokens; `keep` names the side that is cut."""
    ids = list(token_ids)
    if len(ids) <= length:
        return ids
    if keep == "left":
        return ids[len(ids) - length :]
    if keep == "right":
        return ids[:length]
    first = length // 2
    return ids[:first] + ids[len(ids) - (length - first) :]


def check_batch_size(num_rows: int, batch_size: int) -> None:
    """Raise DataError when the data has fewer rows than a batch."""
    if num_rows >= batch_size:
        return
    if num_rows == 0:
        raise DataError("the training data has no rows", hint="name a dataset with `data.train_files`")
    raise DataError(
        f"the training data has {counted(num_rows, 'row')}, and a batch needs {batch_size}",
        hint=f"set `trainer.batch_size={num_rows}` or less, or add rows",
    )


def check_token_ids(sequences: Iterable[Sequence[int]], vocab_size: int) -> None:
    """Raise ModelError for a token without an embedding in the model."""
    largest = max(map(max, sequences), default=0)
    if largest >= vocab_size:
        raise ModelError(
            f"the tokenizer gives the id {largest}, and the model has {vocab_size} embeddings",
            hint="set `model.tokenizer` to the tokenizer of the model",
        )


def _encode(row: PromptRow, chat: PromptEncoder) -> tuple[str, list[int]]:
    try:
        text, token_ids = chat.encode(row.prompt)
    except RLCompatError as error:
        raise DataError(f"row {row.row}: {error.message}", hint=error.hint) from error
    if not token_ids:
        raise DataError(f"row {row.row} gives no tokens", hint=f"its prompt is `{text[:80]}`")
    return text, token_ids


def _prompt(row: PromptRow, text: str, token_ids: Sequence[int]) -> Prompt:
    return Prompt(
        token_ids=tuple(token_ids),
        text=text,
        data_source=row.data_source,
        ground_truth=row.ground_truth,
        extra_info=row.extra_info,
        row=row.row,
        messages=row.prompt,
    )


def _check_lengths(too_long: Sequence[tuple[int, int]], *, num_rows: int, limit: int, overlong: Overlong) -> None:
    if not too_long:
        return
    longest = max(length for _, length in too_long)
    if overlong == "error":
        row, length = too_long[0]
        raise too_long_error(row, length, limit=limit, num_more=len(too_long) - 1, longest=longest)
    if overlong == "filter" and len(too_long) == num_rows:
        shortest = min(length for _, length in too_long)
        raise DataError(
            f"all {num_rows} rows are too long: the shortest has {shortest} tokens, and the limit is {limit}",
            hint=f"set `data.max_prompt_length={longest}` to keep all, or `data.overlong_prompts=left` to cut them",
        )


def too_long_error(row: int, length: int, *, limit: int, num_more: int = 0, longest: int = 0) -> DataError:
    """The error for a row that is too long under `data.overlong_prompts=error`."""
    more = f", and {counted(num_more, 'row')} more" if num_more else ""
    enough = max(length, longest)
    return DataError(
        f"the prompt of row {row} has {length} tokens, and the limit is {limit}{more}",
        hint=f"set `data.max_prompt_length={enough}`, or `data.overlong_prompts=filter` to drop such rows",
    )


def _notes(too_long: Sequence[tuple[int, int]], *, num_rows: int, limit: int, overlong: Overlong) -> tuple[str, ...]:
    if not too_long:
        return ()
    longest = max(length for _, length in too_long)
    rows = name_rows([row for row, _ in too_long])
    done = "dropped" if overlong == "filter" else f"cut ({overlong})"
    return (f"{len(too_long)} of {num_rows} rows {done}: over {limit} tokens, the longest has {longest} ({rows})",)
