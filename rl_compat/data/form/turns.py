"""Chat turns from the values in files: messages, ShareGPT conversations, JSON text, and tables that add nulls."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rl_compat.data.form.rows import ChatMessages, Text, ToolSchemas, response_messages

ROLES: Mapping[str, str] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "ipython": "tool",
}
"values of `role`, and of `from` in ShareGPT, to roles"


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
    turns: ChatMessages = []
    for number, item in enumerate(value):
        with part(f"turn {number}"):
            turns.append(_turn(item))
    if not any(map(says_something, turns)):
        raise Unusable("empty")
    return turns


def says_something(turn: Mapping[str, Any]) -> bool:
    """Whether a turn has a text that can be seen, or calls."""
    return not is_blank(turn.get("content") or "") or bool(turn.get("tool_calls"))


def is_blank(text: str) -> bool:
    """Whether a text is white space and characters without a shape, such as a byte order mark."""
    return all(character.isspace() or unicodedata.category(character) == "Cf" for character in text)


def unpacked(value: Any) -> Any:
    """Messages that a column holds as JSON text, decoded; any other value unchanged."""
    found = decoded(value)
    items = found if isinstance(found, list) else [found]
    speaks = bool(items) and all(isinstance(item, dict) and ("role" in item or "from" in item) for item in items)
    return found if speaks else value


def unpacked_object(value: Any) -> dict[str, Any]:
    """A struct, also one in JSON text; an empty dict for any other value."""
    value = decoded(value)
    return value if isinstance(value, dict) else {}


def decoded(value: Any) -> Any:
    """A list or an object in JSON text; any other value unchanged."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def tools_in(value: Any) -> ToolSchemas:
    """Tools in OpenAI's form from schemas of functions, each or all of them also in JSON text. Raises Unusable."""
    value = decoded(value)
    if not value:
        return ()
    items = [decoded(item) for item in (value if isinstance(value, list) else [value])]
    found = []
    for item in items:
        own = item.get("function", item) if isinstance(item, dict) else None
        if not isinstance(own, dict) or not isinstance(own.get("name"), str):
            raise Unusable("a tool without a name")
        if "parameters" in own:
            own = own | {"parameters": decoded(own["parameters"])}
        found.append(_drop_nulls({"type": "function", "function": own}))
    return tuple(found)


def is_empty(value: Text) -> bool:
    return isinstance(value, str) and is_blank(value)


def checked_response(value: Text) -> Text:
    """The response itself. Raises Unusable where no assistant turn has a text other than white space, or calls."""
    turns = response_messages(value)
    if not any(turn["role"] == "assistant" and says_something(turn) for turn in turns):
        raise Unusable("empty" if any(turn["role"] == "assistant" for turn in turns) else "no assistant turn")
    return value


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
    response = messages[spoken[0] : spoken[-1] + 1]
    checked_response(response)
    return messages[: spoken[0]], response


def _turn(item: Any) -> dict[str, Any]:
    """A message from a dict with `role` and `content`, or with `from` and `value`."""
    speaker = (item.get("role") or item.get("from")) if isinstance(item, dict) else None
    if not isinstance(speaker, str):
        raise Unusable("no `role` and `content`")
    role = ROLES.get(speaker.lower())
    if role is None:
        raise Unusable(f"unknown role `{speaker}`")
    content = item.get("content") if "role" in item else item.get("value")
    others = {key: _drop_nulls(value) for key, value in item.items() if value is not None and key not in _READ}
    calls = item.get("tool_calls") or item.get("function_call")
    if speaker.lower() == "function_call":
        calls, content = content, None
    if calls:
        others["tool_calls"] = _calls_in(calls)
    content = _content_in(content, role)
    return {"role": role, "content": "" if content is None and not calls else content, **others}


_READ = ("role", "content", "from", "value", "tool_calls", "function_call")


def _content_in(content: Any, role: str) -> str | None:
    """The text of a turn: parts are joined by line breaks, as in vLLM, and an object that a tool returns is JSON."""
    if content is None or isinstance(content, str):
        return content
    if role == "tool" and not _has_parts(content):
        return json.dumps(content, ensure_ascii=False)
    texts = []
    for number, item in enumerate(content if isinstance(content, list) else [content]):
        text = item.get("text") if isinstance(item, dict) else item
        if not isinstance(text, str):
            kind = str(item.get("type")) if isinstance(item, dict) else type(item).__name__
            what = "has no text" if kind.endswith("text") else f"is `{kind}`, not text"
            raise Unusable(f"part {number} of the content {what}")
        texts.append(text)
    return "\n".join(texts)


def _has_parts(content: Any) -> bool:
    items = content if isinstance(content, list) else [content]
    return all(isinstance(item, dict) and isinstance(item.get("type"), str) for item in items)


def _calls_in(value: Any) -> list[dict[str, Any]]:
    """Calls in OpenAI's form with the arguments as an object, which is what templates expect. Raises Unusable."""
    value = decoded(value)
    found = []
    for item in map(decoded, value if isinstance(value, list) else [value]):
        own = item.get("function", item) if isinstance(item, dict) else None
        if not isinstance(own, dict) or not isinstance(own.get("name"), str):
            raise Unusable("a call without the name of a function")
        given = own.get("arguments") or {}
        call = {"name": own["name"], "arguments": decoded(given) if isinstance(given, str) else _drop_nulls(given)}
        kept = {"id": item["id"]} if item.get("id") else {}
        found.append({**kept, "type": "function", "function": call})
    return found


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_nulls(item) for key, item in value.items() if item is not None}
    return [_drop_nulls(item) for item in value] if isinstance(value, list) else value
