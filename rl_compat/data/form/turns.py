"""Chat turns from the values in files: messages, ShareGPT conversations, JSON text, and tables that add nulls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Unusable:
    """The reason why a row cannot be used."""

    why: str


def text_or_turns(value: Any) -> Text | Unusable:
    """A prompt or response from the value of a column; an empty text is returned as it is."""
    if value is None:
        return Unusable("null")
    value = unpacked(value)
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and ("role" in value or "from" in value):
        value = [value]
    if not isinstance(value, list):
        return Unusable(f"neither text nor messages: {type(value).__name__}")
    return turns(value) if value else Unusable("empty")


def turns(value: list[Any]) -> ChatMessages | Unusable:
    """Messages from dicts with `role` and `content`, or with `from` and `value`."""
    found: ChatMessages = []
    for item in value:
        turn = _turn(item)
        if isinstance(turn, Unusable):
            return turn
        found.append(turn)
    if not any(turn.get("content") or turn.get("tool_calls") for turn in found):
        return Unusable("empty")
    return found


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


def split_at_response(messages: ChatMessages) -> tuple[ChatMessages, ChatMessages] | Unusable:
    """The turns before the first assistant turn, and those from it to the last assistant turn."""
    spoken = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if not spoken:
        return Unusable("no assistant turn")
    if spoken[0] == 0:
        return Unusable("begins with an assistant turn")
    return messages[: spoken[0]], messages[spoken[0] : spoken[-1] + 1]


def _turn(item: Any) -> dict[str, Any] | Unusable:
    if not isinstance(item, dict):
        return Unusable("a list without `role` and `content`")
    if isinstance(item.get("role"), str):
        return _without_nulls(item)
    if not isinstance(item.get("from"), str):
        return Unusable("a list without `role` and `content`")
    role = ROLES.get(item["from"].lower())
    return (
        Unusable(f"unknown speaker `{item['from']}`") if role is None else {"role": role, "content": item.get("value")}
    )


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    """A message without the fields that are null because another row of the table has them."""
    return {key: _drop_nulls(value) for key, value in message.items() if value is not None or key == "content"}


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_nulls(item) for key, item in value.items() if item is not None}
    return [_drop_nulls(item) for item in value] if isinstance(value, list) else value
