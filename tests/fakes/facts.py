"""The facts of an error: what tests assert of a message in place of its wording."""

from __future__ import annotations

import re


def facts(error: object) -> set[str]:
    """The literals in backticks, and the numbers outside of them, of an error, its hint, or a text."""
    text = str(error)
    literals = re.findall("`([^`]*)`", text)
    return {*literals, *re.findall(r"-?\d+(?:\.\d+)?", re.sub("`[^`]*`", " ", text))}
