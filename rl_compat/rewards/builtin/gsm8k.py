"""Rewards for GSM8K: the right number, verl's exact rule, and a small one for the form of the answer."""

from __future__ import annotations

import re
from typing import Any

from rl_compat.errors import RewardError
from rl_compat.rewards.builtin.numbers import Number, last_number, numbers, parse_number
from rl_compat.rewards.types import Outcome

MARKER = "####"
STRICT_WINDOW = 300
"characters at the end that verl looks at"
LONGEST_TAIL = 40
"characters after the answer that still count as the end of the response"

_STRICT_ANSWER = re.compile(r"#### (-?[0-9.,]+)")
_MARKERS = re.compile(r"#{4,}")


def gsm8k(response: str, ground_truth: Any) -> Outcome:
    """1 when the answer equals the ground truth as a number, else 0, wherever in the text it stands.

    The answer is the first number after the last `####` that a number follows; a response with `####` and no number
    after it has no answer. Without `####` it is the last number of the text. Values are compared exactly: `18.00`,
    `$18`, `18.` and `18 dollars` equal `18`; `1,8` reads as `1`.
    """
    expected = parse_number(str(ground_truth))
    if expected is None:
        raise RewardError(f"the ground truth `{ground_truth}` is not a number", hint="mend the data")
    answer = find_answer(response)
    correct = answer is not None and answer.value == expected
    return Outcome(
        reward=float(correct),
        correct=correct,
        answer_found=answer is not None,
        extras={"answer": None if answer is None else answer.text},
    )


def find_answer(response: str) -> Number | None:
    """The number that the response gives as its answer."""
    if MARKER not in response:
        return last_number(response)
    for part in reversed(_MARKERS.split(response)[1:]):
        first = next(numbers(part), None)
        if first is not None:
            return first
    return None


def gsm8k_strict(response: str, ground_truth: Any) -> Outcome:
    """verl's rule: the last `#### <number>` in the last 300 characters, commas removed, equal as text."""
    found = _STRICT_ANSWER.findall(response[-STRICT_WINDOW:])
    answer = found[-1].replace(",", "").replace("$", "") if found else None
    correct = answer is not None and answer == ground_truth
    return Outcome(reward=float(correct), correct=correct, answer_found=answer is not None, extras={"answer": answer})


def gsm8k_format(response: str, ground_truth: Any = None) -> Outcome:
    """How far the response has the form that the prompt asks for, whatever the number.

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
    return Outcome(reward=reward)


def _leading(part: str) -> Number | None:
    """The number that a text begins with."""
    first = next(numbers(part.lstrip()[:LONGEST_TAIL]), None)
    if first is None or not part.lstrip().startswith(first.text):
        return None
    offset = len(part) - len(part.lstrip())
    return Number(first.value, first.text, first.end + offset)
