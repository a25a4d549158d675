"""What became of each key that was given: the record and its table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["honoured", "translated", "without effect", "refused", "not given"]
"`not given` is a default of verl's that differs from ours"

COLUMNS = ("key", "value", "verdict", "becomes", "why")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyVerdict:
    """One key, the value it was given, and what that did."""

    key: str
    value: str
    verdict: Verdict
    native_key: str | None = None
    reason: str = ""
    warn: bool = False
    "someone who reads only warnings should read this"

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        target = f" as `{self.native_key}`" if self.native_key not in (None, self.key) else ""
        why = f": {self.reason}" if self.reason else ""
        return f"`{self.key}={self.value}` {self.verdict}{target}{why}"


def render_report(report: Iterable[KeyVerdict]) -> list[tuple[str, str, str, str, str]]:
    """Rows under COLUMNS."""
    return [(line.key, line.value, line.verdict, line.native_key or "", line.reason) for line in report]


def warnings_of(report: Iterable[KeyVerdict]) -> list[str]:
    """The sentences that should be shown even when the table is not."""
    return [line.sentence for line in report if line.warn]
