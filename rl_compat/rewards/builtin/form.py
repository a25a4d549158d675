"""The reward for the format of a response: a sequence of tags."""

from __future__ import annotations

import re
from typing import Any

from rl_compat.rewards.types import RewardOutcome


def format_tags(
    response: str, ground_truth: Any = None, *, tags: str = "think,answer", prompt_text: str = ""
) -> RewardOutcome:
    """1 if the response is `<think>…</think><answer>…</answer>` and nothing else, else 0.

    `tags` sets other tags, in order, separated by commas. Every tag opens and closes once and is not empty, and there
    is only white space between tags. The first opening tag may be missing if the prompt ends with it.
    """
    names = [name.strip() for name in tags.split(",") if name.strip()]
    opened = bool(names) and prompt_text.rstrip().endswith(f"<{names[0]}>")
    text = f"<{names[0]}>{response}" if opened and not response.lstrip().startswith(f"<{names[0]}>") else response
    return RewardOutcome(reward=float(has_form(text, names)))


def has_form(text: str, names: list[str]) -> bool:
    """Whether a text consists of the named tags in order, each once and not empty."""
    rest = text.strip()
    for name in names:
        start, end = f"<{name}>", f"</{name}>"
        if text.count(start) != 1 or text.count(end) != 1 or not rest.startswith(start):
            return False
        content, _, rest = rest.removeprefix(start).partition(end)
        if not content.strip() or any(re.search(f"</?{re.escape(other)}>", content) for other in names):
            return False
        rest = rest.lstrip()
    return not rest
