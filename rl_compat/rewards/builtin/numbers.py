"""Numbers in text: signs, thousands separators, currency and fractions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

LONGEST_DIGITS = 400
"a longer run of digits is not an answer"

_MINUS_SIGNS = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"), "-")
_NUMBER = re.compile(
    r"""
    (?P<sign>(?<![\w.)\]])[-+])?             # a sign after a digit, word or bracket is an operator
    (?:[$€£¥]\ ?(?P<late_sign>-)?)?
    (?P<digits>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]|,[0-9])|[0-9]+(?=[^0-9]|$)|(?=\.[0-9]))
    (?P<decimals>\.[0-9]+)?
    (?:/(?P<denominator>[0-9]+)(?![0-9/]))?
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a text: its exact value and its end position."""

    value: Fraction
    text: str
    end: int


def numbers(text: str) -> Iterator[Number]:
    """The numbers of a text from left to right, in time linear in its length.

    Commas separate thousands only: `1,005` is one number, `1,8` is `1` and then `8`. A minus sign counts when it
    touches the number or its currency sign and does not follow a digit, a word or a closing bracket, so `10-7` holds
    `10` and `7`. `3/4` is a fraction, and a trailing full stop is not part of a number.
    """
    for match in _NUMBER.finditer(text.translate(_MINUS_SIGNS)):
        if _is_number(match):
            yield _number(match, text)


def last_number(text: str) -> Number | None:
    """The last number in a text, or None."""
    last = None
    for match in _NUMBER.finditer(text.translate(_MINUS_SIGNS)):
        if _is_number(match):
            last = match
    return None if last is None else _number(last, text)


def _is_number(match: re.Match[str]) -> bool:
    return len(match.group()) <= LONGEST_DIGITS and (match["denominator"] is None or int(match["denominator"]) != 0)


def _number(match: re.Match[str], text: str) -> Number:
    value = Fraction((match["digits"] or "0").replace(",", "") + (match["decimals"] or ""))
    if match["denominator"]:
        value /= int(match["denominator"])
    negative = match["sign"] == "-" or match["late_sign"]
    return Number(-value if negative else value, text[match.start() : match.end()], match.end())
