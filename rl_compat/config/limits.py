"""Limits of a setting's value, as metadata of its type: `Annotated[int, Range(ge=1)]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

WORDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Bounds of a number, checked by pydantic and described by `words`."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    @property
    def bounds(self) -> dict[str, float]:
        values = {"ge": self.ge, "gt": self.gt, "le": self.le, "lt": self.lt}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def words(self) -> str:
        """For example `at least 0 and below 1`."""
        return " and ".join(f"{WORDS[name]} {value:g}" for name, value in self.bounds.items())

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), **self.bounds}


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """Text or a list with at least one item."""

    words = "not empty"

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), "min_length": 1}


Count = Annotated[int, Range(ge=1)]
Index = Annotated[int, Range(ge=0)]
Positive = Annotated[float, Range(gt=0)]
NotNegative = Annotated[float, Range(ge=0)]
Fraction = Annotated[float, Range(gt=0, le=1)]
ZeroToOne = Annotated[float, Range(ge=0, le=1)]
BelowOne = Annotated[float, Range(ge=0, lt=1)]
Text = Annotated[str, NotEmpty()]
Texts = Annotated[tuple[str, ...], NotEmpty()]
