"""Small text files of the operating system."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
