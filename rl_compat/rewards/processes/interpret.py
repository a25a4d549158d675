"""Convert the return value of a custom function to an outcome."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rl_compat.errors import quoted
from rl_compat.rewards.types import Failure, RewardOutcome

SHOWN_CHARACTERS = 200


def outcome_of(value: Any, *, function: str, row: int) -> RewardOutcome:
    """The outcome for a number, or for a dict with `score`; its other keys become extras, and `acc` the correctness.

    None, NaN and infinity are errors of that response. Any other value is misuse, which stops the run.
    """
    extras: dict[str, Any] = {}
    score = value
    if isinstance(value, Mapping):
        if "score" not in value:
            keys = quoted(value) or "no keys"
            return failed(f"`{function}` returned a dict with {keys} for row {row}, expected `score`", kind="misuse")
        score = value["score"]
        extras = {str(key): plain(item) for key, item in value.items() if key != "score"}
    number = as_number(score)
    if number is None:
        kind = "error" if score is None else "misuse"
        return failed(f"`{function}` returned {shown(score)} for row {row}, expected a number", kind=kind)
    if not math.isfinite(number):
        return failed(f"`{function}` returned `{number}` for row {row}, expected a finite number")
    accuracy = as_number(extras.get("acc"))
    return RewardOutcome(reward=number, correct=None if accuracy is None else accuracy >= 1, extras=extras)


def failed(message: str, *, kind: Any = "error") -> RewardOutcome:
    """The outcome of a function that returned no reward."""
    return RewardOutcome(reward=None, failure=Failure(kind=kind, message=message))


def as_number(value: Any) -> float | None:
    """The float of a number, boolean or zero-dimensional array, else None."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, (int, float, Decimal, Fraction)):
        return float(value)
    return None


def plain(value: Any) -> Any:
    """A value that another process can read without the user's code: unknown objects become their `repr`."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return shown(value)


def shown(value: Any) -> str:
    """The `repr` of a value, shortened for a message."""
    text = repr(value)
    return f"`{text[:SHOWN_CHARACTERS]}{'…' if len(text) > SHOWN_CHARACTERS else ''}`"
