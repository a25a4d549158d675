"""Rewards for GSM8K: the correct number, verl's strict rule, and a reward for the format of the answer."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from numbers import Number as AnyNumber
from typing import Any

from rl_compat.errors import RewardError
from rl_compat.rewards.builtin.texts import truths
from rl_compat.rewards.types import RewardOutcome, judged

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
        if len(match.group()) > LONGEST_DIGITS:
            continue
        denominator = 1 if match["denominator"] is None else int(match["denominator"])
        if denominator != 0:
            value = Fraction((match["digits"] or "0").replace(",", "") + (match["decimals"] or "")) / denominator
            negative = match["sign"] == "-" or match["late_sign"]
            yield Number(-value if negative else value, text[match.start() : match.end()], match.end())


MARKER = "####"
STRICT_WINDOW = 300
"characters at the end of a response that verl searches"
LONGEST_TAIL = 40
"characters after the answer that still count as the end of the response"

_STRICT_ANSWER = re.compile(r"#### (-?[0-9.,]+)")
_MARKERS = re.compile(r"#{4,}")


def gsm8k(response: str, ground_truth: Any) -> RewardOutcome:
    """1 if the answer equals the ground truth as a number, else 0.

    The answer is the first number after the last `####` that is followed by a number. A response with `####` and no
    number after it has no answer. Without `####`, the answer is the last number in the text. Values are compared
    exactly: `18.00`, `$18`, `18.` and `18 dollars` equal `18`, and `1,8` is read as `1`.

    Raises RewardError if the ground truth is not one number, nor a text with a number after its last `####`.
    """
    expected = gold_number(ground_truth)
    if expected is None:
        raise RewardError(
            f"the ground truth `{str(ground_truth)[:40]}` is not one number", hint="fix the ground truth in the data"
        )
    answer = find_answer(response)
    return judged(False, None) if answer is None else judged(answer.value == expected.value, answer.text)


def gold_number(ground_truth: Any) -> Number | None:
    """The number of a ground truth: the first after the last `####`, or the only one of a text without a marker."""
    if isinstance(ground_truth, bool) or not isinstance(ground_truth, (str, AnyNumber)):
        return None
    _, marker, rest = str(ground_truth).rpartition(MARKER)
    found = list(islice(numbers(rest), 2))
    return found[0] if found and (marker or len(found) == 1) else None


def find_answer(response: str) -> Number | None:
    """The number that is the answer of a response, or None."""
    if MARKER not in response:
        return next(iter(deque(numbers(response), maxlen=1)), None)
    for part in reversed(_MARKERS.split(response)[1:]):
        first = next(numbers(part), None)
        if first is not None:
            return first
    return None


def gsm8k_strict(response: str, ground_truth: Any) -> RewardOutcome:
    """verl's rule: the last `#### <number>` in the last 300 characters, without commas, equals the truth as text."""
    found = _STRICT_ANSWER.findall(response[-STRICT_WINDOW:])
    answer = found[-1].replace(",", "").replace("$", "") if found else None
    return judged(answer is not None and answer in map(str, truths(ground_truth)), answer)


def gsm8k_format(response: str, ground_truth: Any = None) -> RewardOutcome:
    """How well the response follows the requested format, regardless of the number.

    0 without `####`; 0.25 with `####` and no number directly after it; 0.5 with `#### <number>` more than once or far
    from the end; 1 with it once and at most 40 characters after the number.
    """
    parts = _MARKERS.split(response)[1:]
    answers = [_leading(part) for part in parts]
    if not parts:
        reward = 0.0
    elif answers[-1] is None:
        reward = 0.25
    elif len(parts) > 1 or len(parts[-1].rstrip()) - answers[-1].end > LONGEST_TAIL:
        reward = 0.5
    else:
        reward = 1.0
    return RewardOutcome(reward=reward)


def _leading(part: str) -> Number | None:
    """The number that a text begins with, or None."""
    first = next(numbers(part.lstrip()[:LONGEST_TAIL]), None)
    if first is None or not part.lstrip().startswith(first.text):
        return None
    offset = len(part) - len(part.lstrip())
    return Number(first.value, first.text, first.end + offset)
