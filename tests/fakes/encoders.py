"""A chat encoder that needs no model."""

from __future__ import annotations

from typing import Any


class CharacterEncoder:
    """One token per character, its code point."""

    def encode(self, prompt: str | list[dict[str, Any]], tools: Any = ()) -> tuple[str, list[int]]:
        text = prompt if isinstance(prompt, str) else "".join(message["content"] for message in prompt)
        return text, [ord(character) for character in text]
