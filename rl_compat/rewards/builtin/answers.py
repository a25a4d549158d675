"""Find the final answer of a response: after its thoughts, in a box, in a tag, or after a phrase."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rl_compat.errors import ConfigError

_BOX = re.compile(r"\\(?:boxed|fbox)\b")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_ONE_WORD = re.compile(r"\s*([^\s{}$.,;]+)")
_ANNOUNCED = re.compile(
    r"\banswer\b[*_]*(?:\s+(?:is|was|would\s+be|must\s+be))?\s*[*_]*\s*[:=]?[*_]*[ \t]*", re.IGNORECASE
)

THOUGHTS = (
    *((f"<{name}>", f"</{name}>") for name in ("think", "thinking", "thought", "reasoning", "reason", "seed:think")),
    ("◁think▷", "◁/think▷"),
    ("[THINK]", "[/THINK]"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>", "<|channel|>final<|message|>"),
)
"what opens and closes a thought in the templates of known models"
THOUGHT_TOKENS = frozenset({*(text for pair in THOUGHTS for text in pair), "<|message|>"})
"special tokens that are part of a response's text"


def thought_markers(setting: str) -> tuple[tuple[str, str], ...]:
    """The markers of `reward.thinking`. Raises ConfigError."""
    if setting in ("auto", "off"):
        return THOUGHTS if setting == "auto" else ()
    opens, _, closes = (part.strip() for part in setting.partition(","))
    if not (opens and closes):
        raise ConfigError(
            f"`reward.thinking` is `{setting}`, expected `auto`, `off` or two markers",
            hint="separate the markers by a comma: `<think>,</think>`",
        )
    return ((opens, closes),)


def after_thoughts(text: str, prompt: str = "", *, thoughts: Sequence[tuple[str, str]] = THOUGHTS) -> str:
    """The text of a response after its last thought, empty if it ends inside one. The prompt may have opened it."""
    for opens, closes in thoughts:
        _, closed, rest = text.rpartition(closes)
        if opens in rest or (not closed and prompt.rstrip().endswith(opens)):
            return ""
        text = rest
    return text


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}` or `\fbox{…}`, with nested braces, else None.

    `\boxed 5` without braces contains the next word. A box that is not closed does not count.
    """
    for match in reversed(list(_BOX.finditer(text))):
        after = text[match.end() :].lstrip()
        word = _ONE_WORD.match(after)
        content = _in_braces(after) if after.startswith("{") else word and word[1]
        if content is not None:
            return content.strip()
    return None


def last_tagged(text: str, tag: str) -> str | None:
    """The text between the last `<tag>` and the following `</tag>`, else None."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, end) if end >= 0 else -1
    return text[start + len(tag) + 2 : end].strip() if start >= 0 else None


def last_announced(text: str) -> str | None:
    """The rest of the line, or the next line, after the last `answer is`, `answer:` or `answer =`, else None."""
    for match in reversed(list(_ANNOUNCED.finditer(text))):
        words = match.group().lower()
        rest = text[match.end() :].split("\n", 1)[0].strip().strip("*_").strip()
        if rest and (" " in words.strip() or words.rstrip(" \t*_")[-1:] in ":="):
            return rest
    return None


def _in_braces(text: str) -> str | None:
    depth = 0
    for match in _BRACE.finditer(text):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0 and match.group() == "}":
            return text[1 : match.start()]
    return None
