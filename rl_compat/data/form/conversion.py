"""Converts a record of a known form to a typed row, or to the reason why it cannot be used."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rl_compat.data.form.columns import Record, lookup
from rl_compat.data.form.parts import pair_in, prompt_and_response, prompt_in, whole_conversation
from rl_compat.data.form.patterns import TRUTH, Form
from rl_compat.data.form.rows import LabelledRow, PreferenceRow, PromptRow, SupervisedRow, Text
from rl_compat.data.form.turns import (
    Unusable,
    before_response,
    is_empty,
    unpacked_object,
)

REWRITTEN = {
    "prompt": "prompt",
    "answer": "reward_model.ground_truth",
    "response": "extra_info.answer",
    "source": "data_source",
}
"columns of a rewritten record, which has verl's schema"
YES = ("true", "1", "yes", "good", "desirable", "chosen")
NO = ("false", "0", "no", "bad", "undesirable", "rejected")


def to_row(record: Record, form: Form, *, row: int, index: int, split: str) -> PromptRow | Unusable:
    """A prompt for reinforcement learning. `index` is the position in the file, `row` in the dataset."""
    rewritten = _rewritten(record, form, index, split)
    if isinstance(rewritten, Unusable):
        return rewritten
    record, columns = rewritten
    if form.name == "pair-prompts":
        pair = pair_in(record, columns)
        prompt: Text | Unusable = pair if isinstance(pair, Unusable) else pair[0]
    else:
        prompt = prompt_in(record, columns)
        if form.name == "turns" and isinstance(prompt, list):
            prompt = before_response(prompt) or Unusable("no turn before the response")
    if isinstance(prompt, Unusable):
        return prompt
    if is_empty(prompt):
        return Unusable("empty")
    extra_info = unpacked_object(record.get("extra_info"))
    consumed = {"extra_info", "reward_model", *(columns[role] for role in _CONSUMED if role in columns)}
    others = {key: value for key, value in record.items() if key not in consumed}
    return PromptRow(
        prompt=prompt,
        data_source=_source(record, columns),
        ground_truth=_truth(record, columns),
        extra_info=others | extra_info,
        row=row,
    )


def to_supervised(record: Record, form: Form, *, row: int, index: int, split: str) -> SupervisedRow | Unusable:
    """A prompt and the response to imitate."""
    rewritten = _rewritten(record, form, index, split)
    if isinstance(rewritten, Unusable):
        return rewritten
    record, columns = rewritten
    if form.name == "turns":
        parts = whole_conversation(record, columns)
    else:
        parts = prompt_and_response(record, columns)
    if isinstance(parts, Unusable):
        return parts
    if is_empty(parts[1]):
        return Unusable("response: empty")
    return SupervisedRow(prompt=parts[0], response=parts[1], data_source=_source(record, columns), row=row)


def to_preference(record: Record, form: Form, *, row: int, index: int, split: str) -> PreferenceRow | Unusable:
    """A prompt with a chosen and a rejected response."""
    columns = form.columns
    pair = pair_in(record, columns)
    if isinstance(pair, Unusable):
        return pair
    margin = lookup(record, columns.get("margin"))
    if margin is not None and not _is_number(margin):
        return Unusable("the margin is not a number")
    return PreferenceRow(
        prompt=pair[0],
        chosen=pair[1],
        rejected=pair[2],
        margin=None if margin is None else float(margin),
        data_source=_source(record, columns),
        row=row,
    )


def to_labelled(record: Record, form: Form, *, row: int, index: int, split: str) -> list[LabelledRow] | Unusable:
    """A response with its label; a preference pair gives two rows."""
    columns, source = form.columns, _source(record, form.columns)
    if form.name == "preference":
        pair = pair_in(record, columns)
        if isinstance(pair, Unusable):
            return pair
        prompt, chosen, rejected = pair
        return [
            LabelledRow(prompt=prompt, response=chosen, label=True, data_source=source, row=row),
            LabelledRow(prompt=prompt, response=rejected, label=False, data_source=source, row=row),
        ]
    whole = form.name == "labelled-turns"
    parts = whole_conversation(record, columns) if whole else prompt_and_response(record, columns)
    if isinstance(parts, Unusable):
        return parts
    label = _label(lookup(record, columns["label"]))
    if label is None:
        return Unusable("the label is neither true nor false")
    return [LabelledRow(prompt=parts[0], response=parts[1], label=label, data_source=source, row=row)]


_CONSUMED = ("prompt", "input", "system", "history", "source", "chosen", "rejected")


def _rewritten(record: Record, form: Form, index: int, split: str) -> tuple[Record, Mapping[str, str]] | Unusable:
    if form.rewrite is None:
        return record, form.columns
    record = form.rewrite(record, index, split) or {}
    return (record, REWRITTEN) if record else Unusable("the solution has no final answer")


def _source(record: Record, columns: Mapping[str, str]) -> str:
    return str(lookup(record, columns.get("source")) or "")


def _truth(record: Record, columns: Mapping[str, str]) -> Any:
    """The ground truth; rows of one file may have it in different columns of the form."""
    column = columns.get("answer")
    places = TRUTH["answer"] if column in TRUTH["answer"] else (column,)
    return next((value for place in places if (value := lookup(record, place)) is not None), None)


def _label(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    word = word.removesuffix(".0") if isinstance(value, float) else word
    return True if word in YES else False if word in NO else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


Converter = Callable[..., Any]
CONVERTERS: Mapping[str, Converter] = {
    "prompts": to_row,
    "supervised": to_supervised,
    "preference": to_preference,
    "labelled": to_labelled,
}
