"""Values of settings: from the command line's text or from TOML, into the type of their field."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rl_compat.errors import nearest

NONE_WORDS = ("none", "null", "None")
TRUE_WORDS = ("true", "True", "yes", "on")
FALSE_WORDS = ("false", "False", "no", "off")


class Mismatch(Exception):  # noqa: N818
    """A value that is not of its field's type; says what was expected."""

    def __init__(self, expected: str, hint: str | None = None) -> None:
        super().__init__(expected)
        self.expected = expected
        self.hint = hint


def parse_text(text: str, hint: Any) -> Any:
    """A value written on the command line. Raises Mismatch."""
    text = text.strip()
    for alternative in alternatives(hint):
        try:
            return _parse_as(text, alternative)
        except Mismatch:
            continue
    raise mismatch(text, hint)


def coerce(value: Any, hint: Any) -> Any:
    """A value that already has a type, as TOML or a literal gives it. Raises Mismatch."""
    for alternative in alternatives(hint):
        try:
            return _coerce_as(value, alternative)
        except Mismatch:
            continue
    raise mismatch(value, hint)


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union, None and literals before the types that would swallow them."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return (hint,)
    return tuple(sorted(typing.get_args(hint), key=_rank))


def _rank(member: Any) -> tuple[bool, bool]:
    return member is not types.NoneType, typing.get_origin(member) is not Literal


def describe(hint: Any) -> str:
    """A type in words."""
    return " or ".join(_describe_one(member) for member in reversed(alternatives(hint)))


def mismatch(value: Any, hint: Any) -> Mismatch:
    """What was expected, with the nearest literal when the value looks like one."""
    literals = [name for member in alternatives(hint) for name in _literals(member)]
    close = nearest(value, literals) if isinstance(value, str) else None
    return Mismatch(describe(hint), f"did you mean `{close}`" if close else None)


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


def _parse_as(text: str, kind: Any) -> Any:
    origin = typing.get_origin(kind)
    if kind is types.NoneType:
        return _expect(text in NONE_WORDS, None, kind)
    if origin is Literal:
        return _expect(unquote(text) in typing.get_args(kind), unquote(text), kind)
    if kind is bool:
        return _expect(text in TRUE_WORDS + FALSE_WORDS, text in TRUE_WORDS, kind)
    if kind in (int, float):
        return _number(text, kind)
    if kind is str:
        return unquote(text)
    if origin is tuple:
        return _tuple([parse_text(item, _element(kind)) for item in split_items(text)], kind)
    assert origin is dict, kind
    return _parse_dict(text, kind)


def _coerce_as(value: Any, kind: Any) -> Any:
    origin = typing.get_origin(kind)
    if kind is types.NoneType:
        return _expect(value is None or value in NONE_WORDS, None, kind)
    if origin is Literal:
        return _expect(isinstance(value, str) and value in typing.get_args(kind), value, kind)
    if kind is float:
        return _expect(isinstance(value, int | float) and not isinstance(value, bool), value, kind, float)
    if kind is int:
        return _expect(isinstance(value, int) and not isinstance(value, bool), value, kind)
    if kind in (bool, str):
        return _expect(isinstance(value, kind), value, kind)
    if origin is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        return _tuple([coerce(item, _element(kind)) for item in items], kind)
    assert origin is dict, kind
    return _expect(isinstance(value, Mapping), value, kind, _string_items)


def _expect(fine: bool, value: Any, kind: Any, convert: Any = None) -> Any:
    if not fine:
        raise Mismatch(describe(kind))
    return convert(value) if convert else value


def _number(text: str, kind: Any) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        raise Mismatch(describe(kind)) from error


def _tuple(items: Sequence[Any], kind: Any) -> tuple[Any, ...]:
    arguments = typing.get_args(kind)
    variable = arguments[-1] is Ellipsis
    return _expect(variable or len(items) == len(arguments), tuple(items), kind)  # type: ignore[no-any-return]


def _element(kind: Any) -> Any:
    return typing.get_args(kind)[0]


def _parse_dict(text: str, kind: Any) -> dict[str, str]:
    if len(text) < 2 or text[0] + text[-1] != "{}":
        raise Mismatch(describe(kind))
    pairs = [item.partition(":") for item in split_items(text[1:-1])]
    if any(not separator for _, separator, _ in pairs):
        raise Mismatch(describe(kind))
    return {unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs}


def _string_items(value: Mapping[str, Any]) -> dict[str, str]:
    if any(isinstance(item, Mapping | list) for item in value.values()):
        raise Mismatch("names and single values")
    return {str(name): _as_text(item) for name, item in value.items()}


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _literals(kind: Any) -> tuple[str, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def _describe_one(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin is Literal:
        names = [f"`{name}`" for name in typing.get_args(kind)]
        return names[0] if len(names) == 1 else f"one of {', '.join(names)}"
    if origin is tuple:
        arguments = typing.get_args(kind)
        how_many = "a list of" if arguments[-1] is Ellipsis else f"{len(arguments)}"
        return f"{how_many} {_PLURALS[arguments[0]]}"
    return _WORDS[origin or kind]


_WORDS = {
    types.NoneType: "`none`",
    bool: "`true` or `false`",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "names and values as `{name: value, …}`",
}
_PLURALS = {str: "texts", float: "numbers", int: "whole numbers"}
