"""Taking the first value that works, and saying what was passed over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rl_compat.capability.types import Capability, Choice, Rejected
from rl_compat.errors import HardwareError

Reasons = Callable[[str], tuple[str, ...]]


def choose(
    key: str,
    candidates: Sequence[str],
    *,
    because: str,
    against: Reasons,
    unwise: Reasons = lambda value: (),
    asked: str | None = None,
) -> Choice:
    """The first candidate with nothing against it, or the one that was asked for.

    `against` gives what makes a value impossible and `unwise` what makes it a bad default: only the first can stop
    what the user asked for. Raises HardwareError, naming the key, when the asked value or every candidate is
    impossible.
    """
    if asked is not None:
        return _asked(key, asked, candidates, against, unwise)
    rejected: list[Rejected] = []
    for position, value in enumerate(candidates):
        reasons = against(value) + unwise(value)
        if not reasons:
            later = [
                Rejected(value=other, reasons=against(other) + unwise(other) or (f"`{value}` is preferred",))
                for other in candidates[position + 1 :]
            ]
            return Choice(value=value, reason=because, rejected=(*rejected, *later))
        rejected.append(Rejected(value=value, reasons=reasons))
    facts = "; ".join(f"`{item.value}` {item.reasons[0]}" for item in rejected)
    raise HardwareError(f"no value of `{key}` works here: {facts}")


def _asked(key: str, asked: str, candidates: Sequence[str], against: Reasons, unwise: Reasons) -> Choice:
    reasons = against(asked)
    if reasons:
        possible = [value for value in candidates if value != asked and not against(value)]
        offer = next((value for value in possible if not unwise(value)), possible[0] if possible else None)
        hint = f"set `{key}={offer}`" if offer else None
        raise HardwareError(f"`{key}={asked}` {'; '.join(reasons)}", hint=hint)
    others = tuple(
        Rejected(value=value, reasons=against(value) + unwise(value) or (f"`{asked}` is asked for",))
        for value in candidates
        if value != asked
    )
    return Choice(value=asked, reason="; ".join(("asked for", *unwise(asked))), rejected=others, asked=True)


def capability(name: str, *reasons: tuple[str, ...]) -> Capability:
    """A capability with all the reasons that the rules found."""
    return Capability(name=name, reasons_against=tuple(reason for group in reasons for reason in group))
