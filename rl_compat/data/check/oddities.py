"""Oddities of one row: the order of its turns, text and fields that the template drops, special tokens in its text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from rl_compat.data.encode.prompts import Render, rendered
from rl_compat.data.form.rows import ChatMessages, Text, ToolSchemas, prompt_messages
from rl_compat.data.form.turns import says_something

MEDIA_MARK = re.compile(r"<\|?(?:image|video|audio|vision)(?:_pad|_start)?\|?>")
Oddity = tuple[str, str, bool]
"kind, description, and whether it spoils the row"


def of_turns(prompt: Text) -> Iterator[Oddity]:
    """Oddities of the messages, before the template is applied."""
    messages = prompt_messages(prompt)
    roles = [str(message.get("role")) for message in messages]
    if roles and roles[-1] == "assistant":
        yield "ends-with-assistant", "the prompt ends with an assistant turn, so there is nothing to answer", True
    if "system" in roles[1:]:
        yield "late-system", "a `system` turn is not the first turn", False
    for first, second in pairwise(roles):
        if first == second and first != "tool":
            yield "repeated-role", f"two consecutive `{first}` turns", False
            break
    if not all(map(says_something, messages)):
        yield "empty-turn", "a turn has no content", True


def of_text(
    prompt: Text, text: str, token_ids: Sequence[int], *, begin: int | None, special: Sequence[str]
) -> Iterator[Oddity]:
    """Oddities of the text and the token ids that the template gives."""
    for message in prompt_messages(prompt):
        content = _text(message)
        if content and message.get("role") in ("system", "user") and content not in text:
            yield "template-drops-text", f"the template drops or changes the text of a `{message['role']}` turn", True
            break
    seen = MEDIA_MARK.search(text)
    if seen is not None:
        yield "media-mark", f"the text contains `{seen[0]}`, in whose place a text model sees nothing", False
    if begin is not None and list(token_ids[:2]) == [begin, begin]:
        yield "double-begin", "the prompt begins with two begin-of-text tokens", True
    contents = [content for message in prompt_messages(prompt) if (content := _text(message))]
    written = next((token for content in contents for token in special if token in content), None)
    if written is not None:
        yield "special-token", f"the text contains the special token `{written}`, which is encoded as that token", False


def of_fields(messages: ChatMessages, render: Render, tools: ToolSchemas) -> Iterator[Oddity]:
    """Fields such as `name` that the template writes on no turn of a role."""
    read = ("role", "content", "tool_calls")
    fields = sorted({(str(message["role"]), key) for message in messages for key in message if key not in read})
    text = rendered(render, messages, tools) if fields else None
    for role, key in fields:
        without = [{k: v for k, v in turn.items() if k != key or turn["role"] != role} for turn in messages]
        if text is not None and rendered(render, without, tools) == text:
            yield "template-drops-field", f"the template does not write the `{key}` of a `{role}` turn", False


def _text(message: dict[str, Any]) -> str:
    return (message.get("content") or "").strip()
