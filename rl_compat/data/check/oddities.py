"""What is odd about one prompt: turns in a strange order, text that the template leaves out, tokens written as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from rl_compat.data.form.rows import Text, prompt_messages

Oddity = tuple[bool, str]
"whether it spoils the row, and what is said of it"


def of_turns(prompt: Text) -> Iterator[Oddity]:
    """What can be seen before the template is applied."""
    messages = prompt_messages(prompt)
    roles = [str(message.get("role")) for message in messages]
    if roles and roles[-1] == "assistant":
        yield True, "ends with a turn of the assistant, which is left nothing to answer"
    if "system" in roles[1:]:
        yield False, "a turn of `system` that is not the first"
    for first, second in pairwise(roles):
        if first == second and first != "tool":
            yield False, f"two turns of `{first}` in a row"
            break
    if any(_text(message) == "" and not message.get("tool_calls") for message in messages):
        yield True, "a turn without content"


def of_text(
    prompt: Text, text: str, token_ids: Sequence[int], *, begin: int | None, special: Sequence[str]
) -> Iterator[Oddity]:
    """What can be seen once it is applied."""
    for message in prompt_messages(prompt):
        content = _text(message)
        if content and message.get("role") in ("system", "user") and content not in text:
            yield True, f"the template leaves out or changes the text of `{message['role']}`"
            break
    if begin is not None and list(token_ids[:2]) == [begin, begin]:
        yield True, "the begin token comes twice"
    contents = [content for message in prompt_messages(prompt) if (content := _text(message))]
    written = next((token for content in contents for token in special if token in content), None)
    if written is not None:
        yield False, f"the text holds the special token `{written}`, which is read as one"


def _text(message: dict[str, Any]) -> str | None:
    """The content without surrounding space; None for content that is not text."""
    content = message.get("content")
    return "" if content is None else content.strip() if isinstance(content, str) else None
