"""Chat turns from the values in files: messages, ShareGPT conversations, JSON text, and tables that add nulls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rl_compat.data.form.rows import ChatMessages, Text

ROLES: Mapping[str, str] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"values of `from` in ShareGPT to roles"


class Unusable(Exception):  # noqa: N818
    """The reason why a row cannot be used."""


@contextmanager
def part(name: str) -> Iterator[None]:
    """Put the name of a part of the record before the reason why the part cannot be used."""
    try:
        yield
    except Unusable as error:
        raise Unusable(f"{name}: {error}") from error


def text_or_turns(value: Any) -> Text:
    """A prompt or response from the value of a column; an empty text is returned as it is. Raises Unusable."""
    if value is None:
        raise Unusable("null")
    value = unpacked(value)
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and ("role" in value or "from" in value):
        value = [value]
    if not isinstance(value, list):
        raise Unusable(f"neither text nor messages: {type(value).__name__}")
    turns = [_turn(item) for item in value]
    if not any(turn.get("content") or turn.get("tool_calls") for turn in turns):
        raise Unusable("empty")
    return turns


def unpacked(value: Any) -> Any:
    """Messages that a column holds as JSON text, decoded; any other value unchanged."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        decoded = json.loads(value)
    except ValueError:
        return value
    items = decoded if isinstance(decoded, list) else [decoded]
    speaks = bool(items) and all(isinstance(item, dict) and ("role" in item or "from" in item) for item in items)
    return decoded if speaks else value


def unpacked_object(value: Any) -> dict[str, Any]:
    """A struct, also one in JSON text; an empty dict for any other value."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def is_empty(value: Text) -> bool:
    return isinstance(value, str) and not value.strip()


def before_response(messages: ChatMessages) -> ChatMessages:
    """The turns without the assistant turns at the end."""
    end = len(messages)
    while end and messages[end - 1]["role"] == "assistant":
        end -= 1
    return messages[:end]


def split_at_response(messages: ChatMessages) -> tuple[ChatMessages, ChatMessages]:
    """The turns before the first assistant turn, and those from it to the last assistant turn. Raises Unusable."""
    spoken = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if not spoken:
        raise Unusable("no assistant turn")
    if spoken[0] == 0:
        raise Unusable("begins with an assistant turn")
    return messages[: spoken[0]], messages[spoken[0] : spoken[-1] + 1]


def _turn(item: Any) -> dict[str, Any]:
    """A message from a dict with `role` and `content`, or with `from` and `value`."""
    if isinstance(item, dict) and isinstance(item.get("role"), str):
        return _without_nulls(item)
    if not isinstance(item, dict) or not isinstance(item.get("from"), str):
        raise Unusable("a list without `role` and `content`")
    role = ROLES.get(item["from"].lower())
    if role is None:
        raise Unusable(f"unknown speaker `{item['from']}`")
    return {"role": role, "content": item.get("value")}


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    """A message without the fields that are null because another row of the table has them."""
    return {key: _drop_nulls(value) for key, value in message.items() if value is not None or key == "content"}


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_nulls(item) for key, item in value.items() if item is not None}
    return [_drop_nulls(item) for item in value] if isinstance(value, list) else value
