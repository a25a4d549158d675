"""The verdict on each given key, and its table; settings whose values cannot be used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rl_compat.errors import ConfigError

Verdict = Literal["honoured", "translated", "without effect", "refused", "not given"]
"`not given` is a default of the dialect that differs from the native default"

WORST_FIRST: tuple[Verdict, ...] = ("refused", "without effect", "translated", "honoured", "not given")
COLUMNS = ("key", "value", "verdict", "becomes", "why")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyVerdict:
    """One key, its value, and the verdict on it."""

    key: str
    value: str
    verdict: Verdict
    native_key: str | None = None
    reason: str = ""
    warn: bool = False
    "whether it is shown as a warning"
    fact: str = ""
    "the error message for a refused key; made from the reason if empty"
    hint: str | None = None
    "what to do about a refusal"

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        target = f" as `{self.native_key}`" if self.native_key not in (None, self.key) else ""
        why = f": {self.reason}" if self.reason else ""
        return f"`{self.key}={self.value}` {self.verdict}{target}{why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A setting whose value cannot be used, and a hint."""

    key: str
    message: str
    hint: str | None = None


def render_report(report: Iterable[KeyVerdict]) -> list[tuple[str, str, str, str, str]]:
    """Rows under COLUMNS."""
    return [(line.key, line.value, line.verdict, line.native_key or "", line.reason) for line in report]


def worst_first(report: Iterable[KeyVerdict]) -> list[KeyVerdict]:
    """Refused keys first, then those without effect; warnings before the rest."""
    return sorted(report, key=lambda line: (WORST_FIRST.index(line.verdict), not line.warn))


def warnings_of(report: Iterable[KeyVerdict]) -> list[str]:
    """The sentences that are shown even without the table."""
    return [line.sentence for line in report if line.warn]


def refusal(report: Sequence[KeyVerdict]) -> ConfigError | None:
    """One error that names every refused key; None without any."""
    refused = [line for line in report if line.verdict == "refused"]
    if not refused:
        return None
    facts = [line.fact or f"`{line.key}={line.value}` cannot be honoured: {line.reason}" for line in refused]
    usual = None if any(line.fact for line in refused) else "remove the key, or give a value that works here"
    return ConfigError("\n       ".join(facts), hint=next((line.hint for line in refused if line.hint), usual))
