"""Examples of offline data: a response, a pair of responses, or a pair of conversations to score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, TypeVar

import torch
from torch import Tensor

from rl_compat.batch import Batch
from rl_compat.data.encode.conversations import ConversationEncoder, Conversations, Example, learn_everything
from rl_compat.data.encode.prompts import Overlong, cut
from rl_compat.data.form.rows import LabelledRow, PreferenceRow, SupervisedRow, Text
from rl_compat.data.read.reading import BadRows, check_usable, name_bad, name_rows
from rl_compat.errors import DataError

OfflineRow = TypeVar("OfflineRow", SupervisedRow, PreferenceRow, LabelledRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One example, or the chosen and the rejected one of a pair."""

    examples: tuple[Example, ...]
    preferred: tuple[bool, ...] = (True,)
    "for each example whether it is chosen or desirable"
    margin: float | None = None
    row: int = 0
    "position in the dataset"


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemSet:
    """Encoded items, and what happened to the rows."""

    items: tuple[Item, ...]
    notes: tuple[str, ...] = ()
    "about dropped, cut and unusual rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemBatch(Batch):
    """The examples of several items. `groups` is the number of the item, `response_mask` marks learned tokens."""

    preferred: Tensor
    "[B] bool"
    margins: Tensor
    "[B] float32"
    reference: Tensor | None = None
    "[B] float32: log-probability of the learned tokens of each example under the reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How rows are encoded."""

    chat: ConversationEncoder
    max_prompt_length: int
    max_response_length: int
    overlong: Overlong = "filter"
    "rows over a limit: drop them, stop, or cut the prompt on that side and the response at its end"
    bad_rows: BadRows = "error"


def supervised_items(
    rows: Sequence[SupervisedRow], encoding: Encoding, *, loss_on: Literal["response", "all"] = "response"
) -> ItemSet:
    """Examples to imitate; where the template rewrites earlier turns, a row gives one example for each response."""

    def encode(row: SupervisedRow, conversations: Conversations) -> list[Item]:
        examples = _examples(conversations, row.prompt, row.response, is_plain_text=row.is_plain_text)
        return [Item(examples=(example,), row=row.row) for example in examples]

    found = _encode_all(rows, encoding, encode)
    if loss_on == "response":
        return found
    return replace(
        found, items=tuple(replace(item, examples=tuple(map(learn_everything, item.examples))) for item in found.items)
    )


def preference_items(rows: Sequence[PreferenceRow], encoding: Encoding) -> ItemSet:
    """Pairs with one prompt, the chosen response first."""

    def encode(row: PreferenceRow, conversations: Conversations) -> list[Item]:
        if isinstance(row.chosen, str) and isinstance(row.rejected, str) and row.is_plain_text:
            pair = _parted(conversations.plain_text(row.chosen), conversations.plain_text(row.rejected))
        else:
            pair = _one(conversations, row.prompt, row.chosen), _one(conversations, row.prompt, row.rejected)
        return [Item(examples=pair, preferred=(True, False), margin=row.margin, row=row.row)]

    found = _encode_all(rows, encoding, encode)
    same = [item.row for item in found.items if item.examples[0] == item.examples[1]]
    note = f"chosen and rejected are the same in {name_rows(same)}: the loss of these rows is constant"
    return replace(found, notes=(*found.notes, note)) if same else found


def labelled_items(rows: Sequence[LabelledRow], encoding: Encoding) -> ItemSet:
    """Single responses with their labels."""

    def encode(row: LabelledRow, conversations: Conversations) -> list[Item]:
        if isinstance(row.response, str) and row.is_plain_text:
            example = conversations.plain_text(row.response)
        else:
            example = _one(conversations, row.prompt, row.response)
        return [Item(examples=(example,), preferred=(row.label,), row=row.row)]

    return _encode_all(rows, encoding, encode)


def scored_items(rows: Sequence[PreferenceRow], encoding: Encoding) -> ItemSet:
    """Pairs of whole conversations for a reward model, which scores each at its last token.

    The conversation is the prompt, followed by one placeholder token, so the state before it is scored.
    """

    def encode(row: PreferenceRow, conversations: Conversations) -> list[Item]:
        pair = []
        for response in (row.chosen, row.rejected):
            if not row.is_plain_text:
                _one(conversations, row.prompt, response)
            ids = conversations.whole(row.prompt, response)
            if not ids:
                raise DataError("the conversation gives no tokens", hint="remove the row")
            pair.append(Example(prompt_ids=tuple(ids), response_ids=(0,), learned=(True,)))
        return [Item(examples=tuple(pair), preferred=(True, False), margin=row.margin, row=row.row)]

    whole = replace(
        encoding, max_prompt_length=encoding.max_prompt_length + encoding.max_response_length - 1, max_response_length=1
    )
    return _encode_all(rows, whole, encode)


def partners(items: Sequence[Item]) -> list[int]:
    """For each item the next one, cyclically, with a different prompt: its response is a mismatched one.

    Raises DataError when all items have the same prompt.
    """
    count = len(items)
    found = []
    for index, item in enumerate(items):
        prompt = item.examples[0].prompt_ids
        others = (other % count for other in range(index + 1, index + count))
        partner = next((other for other in others if items[other].examples[0].prompt_ids != prompt), None)
        if partner is None:
            raise DataError(
                "all rows have the same prompt, and each needs the response of another prompt",
                hint="add rows with other prompts",
            )
        found.append(partner)
    return found


def mismatched(items: Sequence[Item]) -> list[Item]:
    """Each prompt with the response of its partner."""
    return [
        replace(item, examples=(replace(items[partner].examples[0], prompt_ids=item.examples[0].prompt_ids),))
        for item, partner in zip(items, partners(items), strict=True)
    ]


def item_batch(items: Sequence[Item], *, default_margin: float = 0.0) -> ItemBatch:
    """The examples of the items, in order. `default_margin` is the margin of items without one."""
    examples = list(chain.from_iterable(item.examples for item in items))
    lengths = torch.tensor([len(example.response_ids) for example in examples])
    width = int(lengths.max())
    response_ids = torch.zeros(len(examples), width, dtype=torch.int64)
    mask = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, example in enumerate(examples):
        response_ids[row, : len(example.response_ids)] = torch.tensor(example.response_ids)
        mask[row, : len(example.learned)] = torch.tensor(example.learned)
    margins = [default_margin if item.margin is None else item.margin for item in items for _ in item.examples]
    return ItemBatch(
        prompt_ids=tuple(example.prompt_ids for example in examples),
        response_ids=response_ids,
        response_mask=mask,
        response_lengths=lengths,
        groups=torch.tensor([number for number, item in enumerate(items) for _ in item.examples]),
        truncated=torch.zeros(len(examples), dtype=torch.bool),
        preferred=torch.tensor([good for item in items for good in item.preferred]),
        margins=torch.tensor(margins, dtype=torch.float32),
    )


def _encode_all(
    rows: Sequence[OfflineRow], encoding: Encoding, encode: Callable[[OfflineRow, Conversations], list[Item]]
) -> ItemSet:
    """Encode every row. Raises DataError for rows that cannot be used or are too long, and when no row is left."""
    conversations = Conversations(encoding.chat)
    items: list[Item] = []
    bad: dict[str, list[int]] = {}
    too_long: list[int] = []
    for row in rows:
        try:
            encoded = encode(row, conversations)
        except DataError as error:
            bad.setdefault(error.message, []).append(row.row)
            continue
        fitting = [_fitted(item, encoding) for item in encoded]
        too_long += [row.row] * any(kept is not item for kept, item in zip(fitting, encoded, strict=True))
        items += [item for item in fitting if item is not None]
    if bad and encoding.bad_rows == "error":
        check_usable(bad, num_rows=len(rows), name="the data", column="response")
    notes = conversations.notes() + ([f"rows left out: {name_bad(bad)}"] if bad else [])
    if too_long:
        notes.append(_overlong_note(too_long, len(rows), encoding))
    if not items:
        raise DataError(f"none of {len(rows)} rows can be used", hint="; ".join(notes) or None)
    return ItemSet(items=tuple(items), notes=tuple(notes))


def _overlong_note(too_long: Sequence[int], num_rows: int, encoding: Encoding) -> str:
    limits = f"{encoding.max_prompt_length} prompt tokens or {encoding.max_response_length} response tokens"
    fact = f"{len(too_long)} of {num_rows} rows have more than {limits}"
    if encoding.overlong == "error":
        raise DataError(
            f"{fact}: {name_rows(too_long)}",
            hint="raise `data.max_prompt_length` or `data.max_response_length`, or `data.overlong_prompts=filter`",
        )
    done = "left out" if encoding.overlong == "filter" else f"cut ({encoding.overlong})"
    return f"{fact} and were {done}: {name_rows(too_long)}"


def _fitted(item: Item, encoding: Encoding) -> Item | None:
    """The item itself within the limits, else cut to them, or None where it is dropped."""
    most_prompt, most_response = encoding.max_prompt_length, encoding.max_response_length
    lengths = [(len(example.prompt_ids), len(example.response_ids)) for example in item.examples]
    total = most_prompt + most_response
    if all(
        p <= most_prompt and (r <= most_response or (p == 1 and p + r <= total)) for p, r in lengths
    ):  # the prompt of plain text is one token, so its response may fill both limits
        return item
    keep = encoding.overlong
    if keep == "filter" or keep == "error":
        return None
    cut_examples = [
        Example(
            prompt_ids=tuple(cut(example.prompt_ids, most_prompt, keep=keep)),
            response_ids=example.response_ids[:most_response],
            learned=example.learned[:most_response],
        )
        for example in item.examples
    ]
    return replace(item, examples=tuple(cut_examples)) if all(any(e.learned) for e in cut_examples) else None


def _examples(conversations: Conversations, prompt: Text, response: Text, *, is_plain_text: bool) -> Iterable[Example]:
    if is_plain_text and isinstance(response, str):
        return [conversations.plain_text(response)]
    return conversations.examples(prompt, response)


def _one(conversations: Conversations, prompt: Text, response: Text) -> Example:
    examples = conversations.examples(prompt, response)
    if len(examples) > 1:
        raise DataError(
            "the template rewrites earlier turns of this response, so it cannot be compared as a whole",
            hint="remove the rows, or set `model.chat_template`",
        )
    return examples[0]


def _parted(chosen: Example, rejected: Example) -> tuple[Example, Example]:
    """Two texts split after their common beginning, which is the prompt."""
    one, other = ((*example.prompt_ids, *example.response_ids) for example in (chosen, rejected))
    shared = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))
    start = max(1, min(shared, len(one) - 1, len(other) - 1))
    first, second = (
        Example(prompt_ids=ids[:start], response_ids=ids[start:], learned=(True,) * (len(ids) - start))
        for ids in (one, other)
    )
    return first, second
