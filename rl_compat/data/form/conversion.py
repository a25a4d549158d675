"""Converts a record of a known form to a typed row. A record that cannot be used raises Unusable with the reason."""

from __future__ import annotations

import math
from ast import literal_eval
from collections.abc import Callable, Mapping
from typing import Any

from rl_compat.data.form.columns import Record, lookup
from rl_compat.data.form.patterns import TRUTH, Form
from rl_compat.data.form.rows import LabelledRow, PreferenceRow, PromptRow, SupervisedRow, Text, prompt_messages
from rl_compat.data.form.turns import (
    Unusable,
    before_response,
    checked_response,
    decoded,
    is_empty,
    part,
    says_something,
    split_at_response,
    text_or_turns,
    tools_in,
    unpacked_object,
)
from rl_compat.errors import quoted

REWRITTEN = {
    "prompt": "prompt",
    "answer": "reward_model.ground_truth",
    "response": "extra_info.answer",
    "source": "data_source",
}
"columns of a rewritten record, which has verl's schema"
MEDIA = ("images", "image", "videos", "video", "audios", "audio", "image_path", "image_url", "multi_modal_data")
"columns that no text model can see"
YES = ("true", "1", "yes", "good", "desirable", "chosen")
NO = ("false", "0", "no", "bad", "undesirable", "rejected")


def to_row(record: Record, form: Form, *, row: int, index: int, split: str) -> PromptRow:
    """A prompt for reinforcement learning. `index` is the position in the file, `row` in the dataset."""
    record, columns = _rewritten(record, form, index, split)
    prompt = pair_in(record, columns)[0] if form.name == "pair-prompts" else prompt_in(record, columns)
    if form.name == "turns" and isinstance(prompt, list):
        prompt = before_response(prompt)
        if not prompt:
            raise Unusable("no turn before the response")
    if is_empty(prompt):
        raise Unusable("empty")
    extra_info = unpacked_object(record.get("extra_info"))
    consumed = {"extra_info", "reward_model", *(columns[role] for role in _CONSUMED if role in columns)}
    others = {key: value for key, value in record.items() if key not in consumed}
    return PromptRow(
        prompt=prompt,
        ground_truth=_truth(record, columns),
        extra_info=others | extra_info,
        **_common(record, columns, row),
    )


def to_supervised(record: Record, form: Form, *, row: int, index: int, split: str) -> SupervisedRow:
    """A prompt and the response to imitate."""
    record, columns = _rewritten(record, form, index, split)
    read = whole_conversation if form.name == "turns" else prompt_and_response
    prompt, response = read(record, columns)
    return SupervisedRow(prompt=prompt, response=response, **_common(record, columns, row))


def to_preference(record: Record, form: Form, *, row: int, index: int, split: str) -> PreferenceRow:
    """A prompt with a chosen and a rejected response."""
    columns = form.columns
    prompt, chosen, rejected = pair_in(record, columns)
    margin = lookup(record, columns.get("margin"))
    if margin is not None and not _is_number(margin):
        raise Unusable("the margin is not a number")
    return PreferenceRow(
        prompt=prompt,
        chosen=chosen,
        rejected=rejected,
        margin=None if margin is None else float(margin),
        **_common(record, columns, row),
    )


def to_labelled(record: Record, form: Form, *, row: int, index: int, split: str) -> list[LabelledRow]:
    """A response with its label; a preference pair gives two rows."""
    columns, common = form.columns, _common(record, form.columns, row)
    if form.name == "preference":
        prompt, chosen, rejected = pair_in(record, columns)
        return [
            LabelledRow(prompt=prompt, response=chosen, label=True, **common),
            LabelledRow(prompt=prompt, response=rejected, label=False, **common),
        ]
    read = whole_conversation if form.name == "labelled-turns" else prompt_and_response
    prompt, response = read(record, columns)
    label = _label(lookup(record, columns["label"]))
    if label is None:
        raise Unusable("the label is neither true nor false")
    return [LabelledRow(prompt=prompt, response=response, label=label, **common)]


_CONSUMED = ("prompt", "input", "system", "history", "source", "chosen", "rejected")


def _rewritten(record: Record, form: Form, index: int, split: str) -> tuple[Record, Mapping[str, str]]:
    if form.rewrite is None:
        return record, form.columns
    rewritten = form.rewrite(record, index, split)
    if not rewritten:
        raise Unusable("the solution has no final answer")
    return rewritten, REWRITTEN


def _common(record: Record, columns: Mapping[str, str], row: int) -> dict[str, Any]:
    """What every row has besides its texts. Raises Unusable for tools without names, and for images and the like."""
    unseen = next((column for column in MEDIA if record.get(column)), None)
    if unseen is not None:
        raise Unusable(f"`{unseen}`, which a text model cannot see")
    with part("tools"):
        tools = tools_in(lookup(record, columns.get("tools")))
    return {"tools": tools, "data_source": str(lookup(record, columns.get("source")) or ""), "row": row}


def _truth(record: Record, columns: Mapping[str, str]) -> Any:
    """The ground truth; rows of one file may have it in different columns of the form."""
    column = columns.get("answer")
    places = TRUTH["answer"] if column in TRUTH["answer"] else (column,)
    return unpacked_answers(next((value for place in places if (value := lookup(record, place)) is not None), None))


def unpacked_answers(value: Any) -> Any:
    """Accepted answers that a column holds as text: a list of texts, or an object with `target`; else the value itself.

    A list of numbers stays text, since `[0, 1]` is an answer of mathematics.
    """
    found = decoded(value)
    if found is value and isinstance(value, str) and value.lstrip().startswith(("['", '["')):
        try:
            found = literal_eval(value.strip())
        except (ValueError, SyntaxError):
            return value
    texts = isinstance(found, list) and all(isinstance(item, str) for item in found)
    return found if texts or (isinstance(found, dict) and "target" in found) else value


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


NUM_NAMED_COLUMNS = 4


def prompt_in(record: Record, columns: Mapping[str, str]) -> Text:
    """The prompt with the input appended, and the history and the system message prepended. Raises Unusable."""
    column = columns["prompt"]
    if lookup(record, column) is None and column.partition(".")[0] not in record:
        raise _of_another_form(record, column)
    prompt = text_or_turns(lookup(record, column))
    below = lookup(record, columns.get("input"))
    if isinstance(prompt, str) and isinstance(below, str) and below.strip():
        prompt = f"{prompt}\n\n{below}" if prompt.strip() else below
    if is_empty(prompt):
        raise Unusable("empty")
    if isinstance(prompt, list) and all(
        turn["role"] in ("system", "developer") for turn in filter(says_something, prompt)
    ):
        raise Unusable("only a system message")
    earlier = _history(lookup(record, columns.get("history")))
    system = lookup(record, columns.get("system"))
    if isinstance(system, str) and system.strip() and not (isinstance(prompt, list) and prompt[0]["role"] == "system"):
        earlier = [{"role": "system", "content": system}, *earlier]
    return [*earlier, *prompt_messages(prompt)] if earlier else prompt


def _of_another_form(record: Record, column: str) -> Unusable:
    """The reason for a row whose columns differ from those of the form."""
    others = quoted(list(record)[:NUM_NAMED_COLUMNS])
    return Unusable(f"no `{column}`, only {others}" if others else f"no `{column}`")


def _history(value: Any) -> list[dict[str, Any]]:
    """Turns from pairs of a question and an answer."""
    pairs = (
        [pair for pair in value or () if isinstance(pair, list) and len(pair) == 2] if isinstance(value, list) else []
    )
    roles = ("user", "assistant")
    return [{"role": role, "content": text} for pair in pairs for role, text in zip(roles, pair, strict=True)]


def prompt_and_response(record: Record, columns: Mapping[str, str]) -> tuple[Text, Text]:
    """The prompt, empty where the form has none, and the response: text, or messages from the first assistant turn.

    A response column may hold the whole conversation. Raises Unusable.
    """
    prompt = prompt_in(record, columns) if "prompt" in columns else ""
    with part("response"):
        response = text_or_turns(lookup(record, columns["response"]))
        if isinstance(response, str) or response[0]["role"] == "assistant":
            return prompt, checked_response(response)
        before, response = split_at_response(response)
    return (before if len(before) >= len(prompt_messages(prompt)) else prompt), response


def whole_conversation(record: Record, columns: Mapping[str, str]) -> tuple[Text, Text]:
    messages = prompt_in(record, columns)
    if isinstance(messages, str):
        raise Unusable("text instead of messages")
    return split_at_response(messages)


def pair_in(record: Record, columns: Mapping[str, str]) -> tuple[Text, Text, Text]:
    """Prompt, chosen, rejected. The common beginning of two whole conversations is their prompt. Raises Unusable."""
    with part("`chosen`"):
        chosen = checked_response(text_or_turns(lookup(record, columns["chosen"])))
    with part("`rejected`"):
        rejected = checked_response(text_or_turns(lookup(record, columns["rejected"])))
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise Unusable("one of `chosen` and `rejected` is text, the other messages")
    prompt = prompt_in(record, columns) if columns.get("prompt") else ""
    if isinstance(chosen, str) or isinstance(rejected, str):
        return prompt, chosen, rejected
    return _without_shared_beginning(_with_system(prompt, record, columns), chosen, rejected)


def _with_system(prompt: Text, record: Record, columns: Mapping[str, str]) -> Text:
    """The system message where there is no prompt column."""
    system = lookup(record, columns.get("system"))
    return (
        [{"role": "system", "content": system}] if not prompt and isinstance(system, str) and system.strip() else prompt
    )


def _without_shared_beginning(
    prompt: Text, chosen: list[dict[str, Any]], rejected: list[dict[str, Any]]
) -> tuple[Text, Text, Text]:
    if chosen[0]["role"] == "assistant" or rejected[0]["role"] == "assistant":
        if not prompt:
            raise Unusable("no prompt")
        return prompt, chosen, rejected
    shortest = min(len(chosen), len(rejected))
    shared = next((i for i in range(shortest) if chosen[i] != rejected[i]), shortest)
    start = min(shared, shortest - 1)
    while start > 0 and chosen[start]["role"] != "assistant":
        start -= 1
    if start == 0 or rejected[start]["role"] != "assistant":
        raise Unusable("`chosen` and `rejected` share no prompt")
    beginning = chosen[:start]
    own = prompt_messages(prompt)
    if own and own[0]["role"] == "system" and beginning[0]["role"] != "system":
        beginning = [own[0], *beginning]
    return beginning, chosen[start:], rejected[start:]
