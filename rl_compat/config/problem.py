"""A setting whose value cannot be used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A setting whose value cannot be used, and a hint."""

    key: str
    message: str
    hint: str | None = None
