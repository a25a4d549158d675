"""Text and TOML values become the type of their field."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from rl_compat.config.values import Mismatch, coerce, parse_text, split_items

Letter = Literal["alpha", "beta"]


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("3", int, 3),
        ("-1", int, -1),
        ("1e-6", float, 1e-6),
        ("3", float, 3.0),
        ("true", bool, True),
        ("False", bool, False),
        ("plain text", str, "plain text"),
        ("'quoted, text'", str, "quoted, text"),
        ('"12"', str, "12"),
        ("none", str | None, None),
        ("null", int | None, None),
        ("7", int | None, 7),
        ("auto", int | Literal["auto"], "auto"),
        ("16", int | Literal["auto"], 16),
        ("auto", bool | Literal["auto"], "auto"),
        ("no", bool | Literal["auto"], False),
        ("beta", Letter, "beta"),
        ("a,b", tuple[str, ...], ("a", "b")),
        ("[a, b]", tuple[str, ...], ("a", "b")),
        ("['a','b']", tuple[str, ...], ("a", "b")),
        ('["a,b", c]', tuple[str, ...], ("a,b", "c")),
        ("(a)", tuple[str, ...], ("a",)),
        ("a", tuple[str, ...], ("a",)),
        ("[]", tuple[str, ...], ()),
        ("", tuple[str, ...], ()),
        ("1,0.5", tuple[float, ...], (1.0, 0.5)),
        ("0.9,0.95", tuple[float, float], (0.9, 0.95)),
        ("{bonus: 0.5, 'unit': \"km\"}", dict[str, str], {"bonus": "0.5", "unit": "km"}),
        ("{}", dict[str, str], {}),
    ],
)
def test_text_is_read_as_its_type(text: str, hint: Any, value: Any) -> None:
    read = parse_text(text, hint)

    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "hint", "expected"),
    [
        ("3.5", int, "a whole number"),
        ("many", float, "a number"),
        ("maybe", bool, "`true` or `false`"),
        ("gamma", Letter, "one of `alpha`, `beta`"),
        ("x", int | None, "a whole number or `none`"),
        ("x", int | Literal["auto"], "a whole number or `auto`"),
        ("0.9", tuple[float, float], "2 numbers"),
        ("[a,b", tuple[str, ...], "a list of texts"),
        ("'a,b", tuple[str, ...], "a list of texts"),
        ("a,1", tuple[float, ...], "a number"),
        ("a=1", dict[str, str], "names and values as `{name: value, …}`"),
        ("betta", tuple[Letter, ...], "a list of `alpha`, `beta`"),
    ],
)
def test_text_of_another_type_says_what_was_expected(text: str, hint: Any, expected: str) -> None:
    with pytest.raises(Mismatch) as caught:
        parse_text(text, hint)

    assert expected in caught.value.expected or caught.value.expected.startswith("a list of")


def test_a_misspelled_literal_gets_the_nearest() -> None:
    with pytest.raises(Mismatch) as caught:
        parse_text("betta", Letter)

    assert "`beta`" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("value", "hint", "result"),
    [
        (3, float, 3.0),
        (["a"], tuple[str, ...], ("a",)),
        ("a", tuple[str, ...], ("a",)),
        ([1, 0.5], tuple[float, ...], (1.0, 0.5)),
        ("none", float | None, None),
        ({"bonus": 0.5, "strict": True}, dict[str, str], {"bonus": "0.5", "strict": "true"}),
    ],
)
def test_toml_values_fit_their_type(value: Any, hint: Any, result: Any) -> None:
    assert coerce(value, hint) == result


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("3", int),
        (True, int),
        (True, float),
        (1, bool),
        (3.0, int),
        (3, str),
        ([0.9], tuple[float, float]),
        ({"a": [1]}, dict[str, str]),
        ([1], tuple[str, ...]),
    ],
)
def test_toml_values_are_never_converted_from_another_type(value: Any, hint: Any) -> None:
    with pytest.raises(Mismatch):
        coerce(value, hint)


def test_items_are_split_outside_quotes_and_brackets() -> None:
    assert split_items("[a, 'b,c', [d, e], {f: g, h: i}]") == ["a", "'b,c'", "[d, e]", "{f: g, h: i}"]
