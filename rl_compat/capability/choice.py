"""A decision: the first value that works, with the reasons against the rejected ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rl_compat.errors import HardwareError

Reasons = Callable[[str], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A value that was not chosen."""

    value: str
    reasons: tuple[str, ...]
    works: bool = False
    "nothing is against it, and another value is preferred"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The chosen value with its reason, and the rejected values in order of preference."""

    value: str
    reason: str
    rejected: tuple[Rejected, ...] = ()
    asked: bool = False
    "the user set this value"


class ImpossibleSettingError(HardwareError):
    """A value that cannot work here. `offers` are the settings of those that can, the best first."""

    def __init__(self, message: str, *, offers: Sequence[str] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint or (f"set `{offers[0]}`" if offers else None))
        self.offers = tuple(offers)


def choose(
    key: str,
    candidates: Sequence[str],
    *,
    because: str,
    against: Reasons,
    unwise: Reasons = lambda value: (),
    asked: str | None = None,
) -> Choice:
    """The value that the user set (`asked`), or the first candidate with nothing against it.

    `against` returns the reasons why a value is impossible, `unwise` the reasons why it is a bad default. Only the
    former rule out a value that the user set. Raises HardwareError, naming the key, if the value that the user set or
    every candidate is impossible.
    """
    if asked is not None:
        return _asked(key, asked, candidates, against, unwise)
    rejected: list[Rejected] = []
    for position, value in enumerate(candidates):
        reasons = against(value) + unwise(value)
        if not reasons:
            later = [
                _rejected(other, against(other) + unwise(other), otherwise=f"`{value}` is preferred")
                for other in candidates[position + 1 :]
            ]
            return Choice(value=value, reason=because, rejected=(*rejected, *later))
        rejected.append(Rejected(value=value, reasons=reasons))
    facts = "; ".join(f"`{item.value}` {item.reasons[0]}" for item in rejected)
    raise HardwareError(f"no value of `{key}` works on this hardware: {facts}")


def _asked(key: str, asked: str, candidates: Sequence[str], against: Reasons, unwise: Reasons) -> Choice:
    reasons = against(asked)
    if reasons:
        possible = [value for value in candidates if value != asked and not against(value)]
        offers = [f"{key}={value}" for value in sorted(possible, key=lambda value: bool(unwise(value)))]
        raise ImpossibleSettingError(f"`{key}={asked}` {'; '.join(reasons)}", offers=offers)
    others = tuple(
        _rejected(value, against(value) + unwise(value), otherwise=f"`{key}={asked}` is set")
        for value in candidates
        if value != asked
    )
    return Choice(value=asked, reason="; ".join(("set by the user", *unwise(asked))), rejected=others, asked=True)


def _rejected(value: str, reasons: tuple[str, ...], *, otherwise: str) -> Rejected:
    return Rejected(value=value, reasons=reasons or (otherwise,), works=not reasons)
