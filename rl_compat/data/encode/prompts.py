"""Prompts as tokens: the chat template, encoding, and the length limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rl_compat.data.form.rows import ChatMessages, PromptRow, Text, ToolSchemas, prompt_messages
from rl_compat.data.read.reading import BadRows, check_usable, name_bad, name_rows
from rl_compat.errors import DataError, ModelError, RLCompatError
from rl_compat.trajectory import Prompt
from rl_compat.units import counted

Overlong = Literal["filter", "error", "left", "right", "middle"]


class PromptEncoder(Protocol):
    """Applies the chat template and tokenizes."""

    def encode(self, prompt: Text, tools: ToolSchemas = ()) -> tuple[str, list[int]]:
        """The templated text, and its token ids."""
        ...


class EncodingError(DataError):
    """A row that gives no tokens to learn from, or not those that were meant. `kind` is that of `rlc data check`."""

    def __init__(self, kind: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind


Render = Callable[[ChatMessages, ToolSchemas], str]


def check_dropped(text: str, render: Render, messages: ChatMessages, tools: ToolSchemas) -> None:
    """Raise EncodingError where the template dropped a part of the messages from the text that it made of them."""
    if tools and rendered(render, messages, ()) == text:
        raise EncodingError("template-drops", "the template drops the tools", hint=DROPPED)
    for number, key in _parts_to_check(text, messages):
        message = messages[number]
        emptied = {**message, key: ""} if key == "content" else {k: v for k, v in message.items() if k != key}
        if rendered(render, [*messages[:number], emptied, *messages[number + 1 :]], tools) == text:
            what = f"the template drops the {key} of turn {number} (`{message['role']}`)"
            raise EncodingError("template-drops", what, hint=DROPPED)


def _parts_to_check(text: str, messages: ChatMessages) -> list[tuple[int, str]]:
    """Calls, and the contents where they do not all stand in the text in their order."""
    position, in_order = 0, True
    for message in messages:
        content = (message.get("content") or "").strip()
        found = text.find(content, position)
        in_order, position = in_order and found >= 0, found + len(content)
    keys = ("tool_calls",) if in_order else ("content", "tool_calls")
    return [(number, key) for number, message in enumerate(messages) for key in keys if message.get(key)]


def rendered(render: Render, messages: ChatMessages, tools: ToolSchemas) -> str | None:
    """The text of the messages, None where the template refuses them."""
    try:
        return render(messages, tools)
    except RLCompatError:
        return None


DROPPED = "set `model.chat_template` to a template that writes it, or remove it from the data"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """Encoded prompts, and what happened to the rows."""

    prompts: tuple[Prompt, ...]
    notes: tuple[str, ...] = ()
    "about dropped and cut rows"


def build_prompts(
    rows: Sequence[PromptRow],
    *,
    chat: PromptEncoder,
    max_prompt_length: int,
    overlong: Overlong = "filter",
    bad_rows: BadRows = "error",
) -> PromptSet:
    """Encode every row once; the rollout and the update use the same ids.

    A prompt of exactly `max_prompt_length` tokens is kept. `filter` drops longer ones; `error` stops; `left` keeps the
    last `max_prompt_length` tokens, `right` the first, `middle` half of them (rounded down) from the start and the
    rest from the end. `Prompt.text` keeps the whole text. Raises DataError when no row is left, and for rows
    without tokens or that the template refuses, unless `bad_rows` drops them.
    """
    prompts: list[Prompt] = []
    too_long: list[tuple[int, int]] = []
    bad: dict[str, list[int]] = {}
    hint = None
    for row in rows:
        try:
            prompt, length = encode_row(row, chat=chat, max_prompt_length=max_prompt_length, overlong=overlong)
        except EncodingError as error:
            bad.setdefault(error.message, []).append(row.row)
            hint = error.hint
            continue
        if length > max_prompt_length:
            too_long.append((row.row, length))
        if prompt is not None:
            prompts.append(prompt)
    _check_lengths(too_long, num_rows=len(rows), limit=max_prompt_length, overlong=overlong)
    if bad_rows == "error" or (bad and not prompts):
        check_usable(bad, num_rows=len(rows), name="the data", column="prompt", hint=hint)
    notes = _notes(too_long, num_rows=len(rows), limit=max_prompt_length, overlong=overlong)
    notes += (f"rows left out: {name_bad(bad)}",) if bad else ()
    return PromptSet(prompts=tuple(prompts), notes=notes)


def encode_row(
    row: PromptRow, *, chat: PromptEncoder, max_prompt_length: int, overlong: Overlong
) -> tuple[Prompt | None, int]:
    """The prompt, None where it is dropped, and its number of tokens before any cut. Raises EncodingError."""
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
        text, token_ids = chat.encode(row.prompt, row.tools)
    except RLCompatError as error:
        raise EncodingError("template-error", error.message, hint=error.hint) from error
    if not token_ids:
        raise EncodingError("no-tokens", "the prompt gives no tokens", hint=f"its text is `{text[:80]}`")
    render: Render = lambda turns, tools: chat.encode(turns, tools)[0]  # noqa: E731
    check_dropped(text, render, prompt_messages(row.prompt), row.tools)
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
        tools=row.tools,
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
