"""From a record of a known form to a typed row, or to the reason why it cannot be one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rl_compat.data.columns import lookup
from rl_compat.data.files import Record
from rl_compat.data.forms import TRUTH, Form
from rl_compat.data.records import LabelledRow, PreferenceRow, Row, SupervisedRow, Text, prompt_messages
from rl_compat.data.turns import (
    Unusable,
    before_response,
    is_empty,
    split_at_response,
    text_or_turns,
    unpacked_object,
)

REWRITTEN = {
    "prompt": "prompt",
    "answer": "reward_model.ground_truth",
    "response": "extra_info.answer",
    "source": "data_source",
}
"where a rewritten row, which has verl's schema, holds what"
YES = ("true", "1", "yes", "good", "desirable", "chosen")
NO = ("false", "0", "no", "bad", "undesirable", "rejected")


def to_row(record: Record, form: Form, *, row: int, index: int, split: str) -> Row | Unusable:
    """A prompt for reinforcement learning. `index` counts within the file, `row` over all files."""
    rewritten = _rewritten(record, form, index, split)
    if isinstance(rewritten, Unusable):
        return rewritten
    record, columns = rewritten
    if form.name == "pair-prompts":
        pair = _pair(record, columns)
        prompt: Text | Unusable = pair if isinstance(pair, Unusable) else pair[0]
    else:
        prompt = _prompt(record, columns)
        if form.name == "turns" and isinstance(prompt, list):
            prompt = before_response(prompt) or Unusable("without a turn of the user")
    if isinstance(prompt, Unusable):
        return prompt
    if is_empty(prompt):
        return Unusable("empty")
    extra_info = unpacked_object(record.get("extra_info"))
    consumed = {"extra_info", "reward_model", *(columns[role] for role in _CONSUMED if role in columns)}
    others = {key: value for key, value in record.items() if key not in consumed}
    return Row(
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
        parts = _whole_conversation(record, columns)
    else:
        parts = _prompt_and_response(record, columns)
    if isinstance(parts, Unusable):
        return parts
    if is_empty(parts[1]):
        return Unusable("with an empty response")
    return SupervisedRow(prompt=parts[0], response=parts[1], data_source=_source(record, columns), row=row)


def to_preference(record: Record, form: Form, *, row: int, index: int, split: str) -> PreferenceRow | Unusable:
    """A prompt with the better and the worse response."""
    columns = form.columns
    pair = _pair(record, columns)
    if isinstance(pair, Unusable):
        return pair
    margin = lookup(record, columns.get("margin"))
    if margin is not None and not _is_number(margin):
        return Unusable("with a margin that is no number")
    return PreferenceRow(
        prompt=pair[0],
        chosen=pair[1],
        rejected=pair[2],
        margin=None if margin is None else float(margin),
        data_source=_source(record, columns),
        row=row,
    )


def to_labelled(record: Record, form: Form, *, row: int, index: int, split: str) -> list[LabelledRow] | Unusable:
    """A response with its label; a preference pair gives two."""
    columns, source = form.columns, _source(record, form.columns)
    if form.name == "preference":
        pair = _pair(record, columns)
        if isinstance(pair, Unusable):
            return pair
        prompt, chosen, rejected = pair
        return [
            LabelledRow(prompt=prompt, response=chosen, label=True, data_source=source, row=row),
            LabelledRow(prompt=prompt, response=rejected, label=False, data_source=source, row=row),
        ]
    whole = form.name == "labelled-turns"
    parts = _whole_conversation(record, columns) if whole else _prompt_and_response(record, columns)
    if isinstance(parts, Unusable):
        return parts
    label = _label(lookup(record, columns["label"]))
    if label is None:
        return Unusable("with a label that is neither true nor false")
    return [LabelledRow(prompt=parts[0], response=parts[1], label=label, data_source=source, row=row)]


_CONSUMED = ("prompt", "input", "system", "history", "source", "chosen", "rejected")


def _rewritten(record: Record, form: Form, index: int, split: str) -> tuple[Record, Mapping[str, str]] | Unusable:
    if form.rewrite is None:
        return record, form.columns
    record = form.rewrite(record, index, split) or {}
    return (record, REWRITTEN) if record else Unusable("without a final answer in its solution")


def _prompt(record: Record, columns: Mapping[str, str]) -> Text | Unusable:
    """The prompt with what other columns add to it: an input below it, a history and a system message before it."""
    prompt = text_or_turns(lookup(record, columns.get("prompt")))
    if isinstance(prompt, Unusable):
        return prompt
    below = lookup(record, columns.get("input"))
    if isinstance(prompt, str) and isinstance(below, str) and below.strip():
        prompt = f"{prompt}\n\n{below}" if prompt.strip() else below
    if is_empty(prompt):
        return Unusable("empty")
    earlier = _history(lookup(record, columns.get("history")))
    system = lookup(record, columns.get("system"))
    if isinstance(system, str) and system.strip() and not (isinstance(prompt, list) and prompt[0]["role"] == "system"):
        earlier = [{"role": "system", "content": system}, *earlier]
    return [*earlier, *prompt_messages(prompt)] if earlier else prompt


def _history(value: Any) -> list[dict[str, Any]]:
    """Earlier turns as pairs of a question and an answer."""
    pairs = (
        [pair for pair in value or () if isinstance(pair, list) and len(pair) == 2] if isinstance(value, list) else []
    )
    roles = ("user", "assistant")
    return [{"role": role, "content": text} for pair in pairs for role, text in zip(roles, pair, strict=True)]


def _prompt_and_response(record: Record, columns: Mapping[str, str]) -> tuple[Text, Text] | Unusable:
    """The prompt, empty when the form has none, and the response as text or as messages from the assistant's first."""
    prompt = _prompt(record, columns) if "prompt" in columns else ""
    response = text_or_turns(lookup(record, columns["response"]))
    if isinstance(prompt, Unusable):
        return prompt
    if isinstance(response, Unusable):
        return Unusable(f"with a response that is {response.why}")
    if isinstance(response, list) and response[0]["role"] != "assistant":
        return _joined(prompt, response)
    return prompt, response


def _joined(prompt: Text, response: list[dict[str, Any]]) -> tuple[Text, Text] | Unusable:
    """A response that repeats its prompt, as whole conversations do."""
    parts = split_at_response(response)
    if isinstance(parts, Unusable):
        return Unusable(f"with a response {parts.why}")
    return (parts[0] if len(parts[0]) >= len(prompt_messages(prompt)) else prompt), parts[1]


def _whole_conversation(record: Record, columns: Mapping[str, str]) -> tuple[Text, Text] | Unusable:
    messages = _prompt(record, columns)
    if isinstance(messages, Unusable):
        return messages
    return split_at_response(messages) if isinstance(messages, list) else Unusable("text where messages are expected")


def _pair(record: Record, columns: Mapping[str, str]) -> tuple[Text, Text, Text] | Unusable:
    """Prompt, chosen, rejected. The beginning that two whole conversations share is their prompt."""
    chosen, rejected = (text_or_turns(lookup(record, columns[role])) for role in ("chosen", "rejected"))
    for role, value in (("chosen", chosen), ("rejected", rejected)):
        if isinstance(value, Unusable):
            return Unusable(f"with a `{role}` that is {value.why}")
    assert not isinstance(chosen, Unusable) and not isinstance(rejected, Unusable)
    if isinstance(chosen, str) != isinstance(rejected, str):
        return Unusable("with text in one and messages in the other of `chosen` and `rejected`")
    prompt: Text | Unusable = _prompt(record, columns) if columns.get("prompt") else ""
    if isinstance(prompt, Unusable):
        return prompt
    if isinstance(chosen, str) or isinstance(rejected, str):
        return prompt, chosen, rejected
    return _without_shared_beginning(_with_system(prompt, record, columns), chosen, rejected)


def _with_system(prompt: Text, record: Record, columns: Mapping[str, str]) -> Text:
    """Where there is no prompt column, its system message alone."""
    system = lookup(record, columns.get("system"))
    return (
        [{"role": "system", "content": system}] if not prompt and isinstance(system, str) and system.strip() else prompt
    )


def _without_shared_beginning(
    prompt: Text, chosen: list[dict[str, Any]], rejected: list[dict[str, Any]]
) -> tuple[Text, Text, Text] | Unusable:
    if chosen[0]["role"] == "assistant" or rejected[0]["role"] == "assistant":
        return (prompt, chosen, rejected) if prompt else Unusable("without a prompt")
    shortest = min(len(chosen), len(rejected))
    shared = next((i for i in range(shortest) if chosen[i] != rejected[i]), shortest)
    start = min(shared, shortest - 1)
    while start > 0 and chosen[start]["role"] != "assistant":
        start -= 1
    if start == 0 or rejected[start]["role"] != "assistant":
        return Unusable("with conversations that share no prompt")
    beginning = chosen[:start]
    own = prompt_messages(prompt)
    if own and own[0]["role"] == "system" and beginning[0]["role"] != "system":
        beginning = [own[0], *beginning]
    return beginning, chosen[start:], rejected[start:]


def _source(record: Record, columns: Mapping[str, str]) -> str:
    return str(lookup(record, columns.get("source")) or "")


def _truth(record: Record, columns: Mapping[str, str]) -> Any:
    """The ground truth; rows may hold it in different columns of the form."""
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
