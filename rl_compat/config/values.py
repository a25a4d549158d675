"""Values of settings: limits, and the way from command-line text or TOML to the type of the field, with pydantic."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from rl_compat.errors import did_you_mean, quoted

LIMIT_WORDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


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
        return " and ".join(f"{LIMIT_WORDS[name]} {value:g}" for name, value in self.bounds.items())

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

NONE_WORDS = ("none", "null", "None")


class Mismatch(Exception):  # noqa: N818
    """A value that is not of its setting's type, with the expected type."""

    def __init__(self, expected: str, hint: str | None = None) -> None:
        super().__init__(expected)
        self.expected = expected
        self.hint = hint


def parse_text(text: str, hint: Any) -> Any:
    """Parse a command-line value. Raises Mismatch."""
    text = text.strip()
    kinds = _kinds(hint)
    if text in NONE_WORDS and types.NoneType in kinds:
        return None
    if tuple in kinds:
        item = typing.get_args(kinds[tuple])[0]
        try:
            items = tuple(parse_text(part, item) for part in split_items(text))
        except Mismatch as error:
            raise Mismatch(describe(hint), error.hint) from error
        return _validated(items, hint, strict=True)
    if dict in kinds:
        return _pairs(text, hint)
    return _validated(unquote(text) if {str, Literal} & {*kinds} else text, hint, strict=False)


def coerce(value: Any, hint: Any) -> Any:
    """Check a value that already has a type, such as one from TOML. Raises Mismatch."""
    kinds = _kinds(hint)
    if types.NoneType in kinds and (value is None or value in NONE_WORDS):
        return None
    if tuple in kinds:
        value = tuple(value) if isinstance(value, list | tuple) else (value,)
    if dict in kinds and isinstance(value, Mapping):
        value = {str(name): _as_text(item) for name, item in value.items()}
    return _validated(value, hint, strict=True)


def violations(value: Any, annotation: Any) -> list[str]:
    """The limits of an annotated type that a value violates, such as `is 0 and must be at least 1`."""
    from pydantic import ValidationError

    try:
        _adapter(annotation, finite=True).validate_python(value, strict=True)
    except ValidationError as error:
        limits = next((limit.words for limit in limits_of(annotation) if isinstance(limit, Range)), "")
        found = error.errors(include_url=False)
        # the violated limits; if none is violated, the value has the wrong type
        exact = [item for item in found if not item["type"].endswith(("_type", "_parsing", "literal_error"))]
        return list(dict.fromkeys(_violation(item, limits) for item in exact or found[:1]))
    return []


def _violation(item: Any, limits: str) -> str:
    value, kind = item["input"], item["type"]
    if kind.endswith("too_short"):
        return "holds an empty text" if item["loc"] else "is empty"
    if kind == "finite_number":
        return f"is {value} and must be finite"
    if kind.startswith(("greater_than", "less_than")):
        return f"is {value} and must be {limits}"
    return f"is {value!r}: {item['msg'].lower()}"


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def limits_of(annotation: Any) -> Iterator[Any]:
    """The limits in an annotated type, of the value or of its items."""
    yield from getattr(annotation, "__metadata__", ())
    arguments = () if typing.get_origin(annotation) is Literal else typing.get_args(annotation)
    for argument in arguments:
        yield from limits_of(argument)


def choices_of(hint: Any) -> tuple[str, ...]:
    """The choices of a value, or of an item of a list."""
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return tuple(word for argument in typing.get_args(hint) for word in choices_of(argument))


def describe(hint: Any) -> str:
    """A type in words."""
    kinds = _kinds(hint)
    words = [_WORDS[kind] for kind in kinds if kind in _WORDS and kind is not types.NoneType]
    if tuple in kinds:
        item, *rest = typing.get_args(kinds[tuple])
        plural = _PLURALS.get(item) or describe(item).removeprefix("one of ")
        words.append(f"{len(rest) + 1} {plural}" if Ellipsis not in rest else f"a list of {plural}")
    elif choices := choices_of(hint):
        words.append(("one of " if len(choices) > 1 else "") + quoted(choices))
    return " or ".join([*words, *(["`none`"] if types.NoneType in kinds else [])])


def _kinds(hint: Any) -> dict[Any, Any]:
    """Plain type, such as `tuple`, to the union member of that type."""
    return {typing.get_origin(kind) or kind: kind for kind in alternatives(hint)}


def split_items(text: str) -> list[str]:
    """The comma-separated items of `a,b`, `[a,b]` or `(a,b)`, split outside quotes and brackets. Raises Mismatch."""
    text = text.strip()
    if len(text) >= 2 and text[0] + text[-1] in ("[]", "()"):
        text = text[1:-1]
    items, depth, quote, start = [], 0, "", 0
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[({":
            depth += 1
        elif character in "])}":
            depth -= 1
        elif character == "," and depth == 0:
            items.append(text[start:position].strip())
            start = position + 1
    if depth or quote:
        raise Mismatch("matching brackets and quotes")
    last = text[start:].strip()
    return [*items, last] if last else items


def unquote(text: str) -> str:
    """Text without a pair of surrounding quotes."""
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'" else text


def _validated(value: Any, hint: Any, *, strict: bool) -> Any:
    from pydantic import ValidationError

    try:
        return _adapter(hint, finite=False).validate_python(value, strict=strict)
    except ValidationError as error:
        words = value if isinstance(value, tuple) else (value,)
        misspelled = (word for word in words if isinstance(word, str) and word not in choices_of(hint))
        raise Mismatch(describe(hint), did_you_mean(next(misspelled, ""), choices_of(hint))) from error


@cache
def _adapter(annotation: Any, *, finite: bool) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=not finite))


def _pairs(text: str, hint: Any) -> dict[str, str]:
    if len(text) < 2 or text[0] + text[-1] != "{}":
        raise Mismatch(describe(hint))
    pairs = [item.partition(":") for item in split_items(text[1:-1])]
    if any(not separator for _, separator, _ in pairs):
        raise Mismatch(describe(hint))
    return {unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs}


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


_WORDS = {
    bool: "`true` or `false`",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "names and values as `{name: value, …}`",
}
_PLURALS = {str: "texts", float: "numbers", int: "whole numbers"}
