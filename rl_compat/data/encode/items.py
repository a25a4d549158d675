"""Examples of offline data: a response, a pair of responses, or a pair of conversations to score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from rl_compat.batch import Batch
from rl_compat.data.encode.conversations import ConversationEncoder, Conversations, Example, learn_everything
from rl_compat.data.encode.prompts import EncodingError, Overlong, cut
from rl_compat.data.form.rows import LabelledRow, PreferenceRow, SupervisedRow, Text
from rl_compat.data.read.reading import BadRows, check_usable, name_bad, name_rows
from rl_compat.errors import DataError

OfflineRow = SupervisedRow | PreferenceRow | LabelledRow


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
    learns_prompt: bool = False
    "all tokens but the first are learned"


def _supervised(row: SupervisedRow, conversations: Conversations) -> list[Item]:
    """Examples to imitate; where the template rewrites earlier turns, a row gives one example for each response."""
    return [Item(examples=(example,), row=row.row) for example in _examples(conversations, row, row.response)]


def _pair(row: PreferenceRow, conversations: Conversations) -> list[Item]:
    """The chosen response first, after the same prompt; two whole texts are split after their common beginning."""
    chosen, rejected = (_one(conversations, row, response) for response in (row.chosen, row.rejected))
    pair = _parted(chosen, rejected) if row.prompt == "" and isinstance(row.chosen, str) else (chosen, rejected)
    return [Item(examples=pair, preferred=(True, False), margin=row.margin, row=row.row)]


def _labelled(row: LabelledRow, conversations: Conversations) -> list[Item]:
    example = _one(conversations, row, row.response)
    return [Item(examples=(example,), preferred=(row.label,), row=row.row)]


def _scored(row: PreferenceRow, conversations: Conversations) -> list[Item]:
    """Whole conversations for a reward model, which scores each at its last token.

    The conversation is the prompt, followed by one placeholder token, so the state before it is scored.
    """
    pair = []
    for response in (row.chosen, row.rejected):
        if row.prompt != "" or not isinstance(response, str):
            _one(conversations, row, response)
        ids = conversations.whole(row.prompt, response, row.tools)
        if not ids:
            raise EncodingError("no-tokens", "the conversation gives no tokens", hint="remove the row")
        pair.append(Example(prompt_ids=tuple(ids), response_ids=(0,), learned=(True,)))
    return [Item(examples=tuple(pair), preferred=(True, False), margin=row.margin, row=row.row)]


_ENCODERS: Mapping[str, Callable[[Any, Conversations], list[Item]]] = {
    "sft": _supervised,
    "dpo": _pair,
    "kto": _labelled,
    "reward_model": _scored,
}


class ItemEncoder:
    """Encodes the rows of one algorithm that learns from offline data."""

    def __init__(self, algorithm: str, encoding: Encoding) -> None:
        self._encode = _ENCODERS[algorithm]
        self._is_scored = algorithm == "reward_model"
        self.encoding = encoding
        self.conversations = Conversations(encoding.chat)

    def items(self, row: OfflineRow) -> list[Item]:
        """The items of a row, of any length. Raises EncodingError for a row that cannot be used."""
        return self._encode(row, self.conversations)

    def within_limits(self, item: Item) -> Item | None:
        """The item, cut where it is longer than the limits, or None where it is dropped."""
        fitted = self._fitted(item)
        if fitted is None or not self.encoding.learns_prompt:
            return fitted
        return replace(fitted, examples=tuple(map(learn_everything, fitted.examples)))

    def lengths(self, item: Item) -> list[tuple[str, int, int]]:
        """The parts of an item: what each is, its tokens, and its limit. Examples of a pair share their prompt."""
        limits, found = self.encoding, []
        both = limits.max_prompt_length + limits.max_response_length
        for number, example in enumerate(item.examples):
            prompt, response = len(example.prompt_ids), len(example.response_ids)
            if self._is_scored:
                found.append(("conversation", prompt, both - 1))
            elif prompt == 1:
                found.append(("text", prompt + response, both))
            else:
                found += [("prompt", prompt, limits.max_prompt_length)] * (number == 0)
                found.append(("response", response, limits.max_response_length))
        return found

    def _fitted(self, item: Item) -> Item | None:
        if all(length <= limit for _, length, limit in self.lengths(item)):
            return item
        keep = self.encoding.overlong
        if keep == "filter" or keep == "error":
            return None
        most_prompt, most_response = self.encoding.max_prompt_length, self.encoding.max_response_length
        if self._is_scored:
            most_prompt, most_response = most_prompt + most_response - 1, 1
        examples = tuple(
            Example(
                prompt_ids=tuple(cut(example.prompt_ids, most_prompt, keep=keep)),
                response_ids=example.response_ids[:most_response],
                learned=example.learned[:most_response],
            )
            for example in item.examples
        )
        return replace(item, examples=examples) if all(any(example.learned) for example in examples) else None

    def encode_all(self, rows: Sequence[OfflineRow]) -> ItemSet:
        """The items of all rows. Raises DataError for rows that cannot be used or are too long, and without any."""
        items: list[Item] = []
        bad: dict[str, list[int]] = {}
        too_long: list[int] = []
        hint = None
        for row in rows:
            try:
                found = self.items(row)
            except EncodingError as error:
                bad.setdefault(error.message, []).append(row.row)
                hint = error.hint
                continue
            too_long += [row.row] * any(self._fitted(item) is not item for item in found)
            items += [fitted for item in found if (fitted := self.within_limits(item)) is not None]
        if self.encoding.bad_rows == "error":
            check_usable(bad, num_rows=len(rows), name="the data", column="response", hint=hint)
        notes = self.conversations.notes() + ([f"rows left out: {name_bad(bad)}"] if bad else [])
        if too_long:
            notes.append(_overlong_note(too_long, len(rows), self.encoding))
        if not items:
            raise DataError(f"none of {len(rows)} rows can be used", hint="; ".join(notes) or None)
        same = [item.row for item in items if len(item.examples) == 2 and item.examples[0] == item.examples[1]]
        if same:
            notes.append(f"chosen and rejected are the same in {name_rows(same)}: the loss of these rows is constant")
        return ItemSet(items=tuple(items), notes=tuple(notes))


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
        rows=torch.tensor([item.row for item in items for _ in item.examples]),
        preferred=torch.tensor([good for item in items for good in item.preferred]),
        margins=torch.tensor(margins, dtype=torch.float32),
    )


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


def _examples(conversations: Conversations, row: OfflineRow, response: Text) -> list[Example]:
    if row.prompt == "" and isinstance(response, str):
        return [conversations.plain_text(response)]
    return conversations.examples(row.prompt, response, row.tools)


def _one(conversations: Conversations, row: OfflineRow, response: Text) -> Example:
    examples = _examples(conversations, row, response)
    if len(examples) > 1:
        raise EncodingError(
            "template-rewrites",
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
