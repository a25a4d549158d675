"""The parts of a record: its prompt, its response, or its chosen and rejected responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_compat.data.form.columns import Record, lookup
from rl_compat.data.form.rows import Text, prompt_messages
from rl_compat.data.form.turns import (
    Unusable,
    checked_response,
    is_empty,
    part,
    says_something,
    split_at_response,
    text_or_turns,
)
from rl_compat.errors import quoted

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
