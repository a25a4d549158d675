"""A decision and why it was taken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """Whether something works on given hardware, with every reason against it."""

    name: str
    reasons_against: tuple[str, ...] = ()

    @property
    def supported(self) -> bool:
        return not self.reasons_against


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    value: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was picked, why, and what was passed over, in order of preference."""

    value: str
    reason: str
    rejected: tuple[Rejected, ...] = ()
    asked: bool = False
    "the user asked for this value"
