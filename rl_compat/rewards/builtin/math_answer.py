"""Rewards for mathematics: the final answer equals the ground truth as an expression, by the math-verify library."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from rl_compat.rewards.builtin.answers import last_announced, last_boxed
from rl_compat.rewards.types import Failure, Outcome

TAIL_CHARACTERS = 2000
"at the end of a response without a box or an announced answer, in which an expression is looked for"
SHOWN_CHARACTERS = 200

_SPACED_DIGITS = re.compile(r"(?<=\d)(?:\\[,!;: ]|\{,\}|~)(?=\d{3}(?!\d))")
_LAYOUT = re.compile(r"\\(?:left|right|displaystyle|big|Big|bigg|Bigg)\b|\\[,!;: ]|\s+")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit|mbox)\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dtc]frac\b")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[^\W\d_]{2,}")


@dataclass(frozen=True, slots=True)
class Answer:
    """A final answer as it stands in the text."""

    text: str
    is_formula: bool
    "the whole of it is the expression; otherwise one is looked for in it"


def math(response: str, ground_truth: Any) -> Outcome:
    r"""1 when the final answer equals the ground truth as a mathematical expression, else 0.

    The answer is the last `\boxed{…}`; without a box what follows the last `answer is` or `####`; else the last
    expression that math-verify finds. Fractions, roots, sets, intervals, matrices, percentages and units are compared
    by value; text by its letters. A list of ground truths is met by any of them.
    """
    return _judge(find_answer(response), ground_truth, right=1.0, wrong=0.0)


def math_dapo(response: str, ground_truth: Any) -> Outcome:
    r"""The same as +1 and -1, the last `Answer: …` before a box, as the data of DAPO asks for."""
    announced = last_announced(response)
    return _judge(find_answer(response) if announced is None else _said(announced), ground_truth, right=1.0, wrong=-1.0)


def find_answer(response: str) -> Answer | None:
    """The final answer, None when there is nothing to look at."""
    boxed = last_boxed(response)
    if boxed is not None:
        return Answer(boxed, True) if boxed else None
    announced = last_announced(response)
    if announced is not None:
        return _said(announced)
    _, marker, rest = response.rpartition("####")
    if marker:
        return _said(rest.strip().split("\n", 1)[0])
    tail = response[-TAIL_CHARACTERS:].strip()
    return Answer(tail, False) if tail else None


def same_expression(answer: Answer, truth: str) -> bool | None:
    """Whether an answer says the truth: as text, or as what math-verify reads; None when it reads nothing in it.

    Raises what sympy raises when two expressions cannot be compared.
    """
    from math_verify import verify

    _silence()
    if plain_form(answer.text) == plain_form(truth):
        return True
    parsed = _parsed(answer)
    if not parsed:
        return None
    expected = _parsed(Answer(truth, True))
    return bool(verify(list(expected), list(parsed), timeout_seconds=None, raise_on_error=True))


def plain_form(text: str) -> str:
    """An expression without what only changes its look: spaces, sizes of brackets, dollars, a final full stop."""
    text = _TEXT.sub(r"\1", _FRACTION.sub(r"\\frac", _SPACED_DIGITS.sub("", text)))
    return _LAYOUT.sub("", text).strip("$").rstrip(".").strip("$")


def _said(text: str) -> Answer | None:
    """What was written after a phrase: a formula unless it has dollars or words around one."""
    boxed = last_boxed(text)
    if boxed is not None or not text:
        return Answer(boxed, True) if boxed else None
    prose = "$" in text or _WORD.search(_COMMAND.sub(" ", _TEXT.sub(" ", text))) is not None
    return Answer(text, not prose)


def _judge(answer: Answer | None, ground_truth: Any, *, right: float, wrong: float) -> Outcome:
    if answer is None:
        return Outcome(reward=wrong, correct=False, answer_found=False, extras={"answer": None})
    truths = [_truth(item) for item in (ground_truth if isinstance(ground_truth, (list, tuple)) else [ground_truth])]
    failure = None
    verdicts: list[bool | None] = []
    for truth in truths:
        try:
            verdicts.append(same_expression(answer, truth))
        except Exception as error:
            message = f"`{answer.text[:80]}` and `{truth[:80]}` cannot be compared: {type(error).__name__}: {error}"
            failure = Failure(kind="error", message=message[:300])
    correct = True in verdicts
    found = failure is not None or any(verdict is not None for verdict in verdicts)
    return Outcome(
        reward=right if correct else wrong,
        correct=correct,
        answer_found=found,
        extras={"answer": answer.text[-SHOWN_CHARACTERS:] if found else None},
        failure=None if correct else failure,
    )


@lru_cache(maxsize=4096)
def _truth(value: Any) -> str:
    text = str(value).strip()
    boxed = last_boxed(text)
    if boxed:
        return boxed
    return text.rpartition("####")[2].strip() if "####" in text else text


@lru_cache(maxsize=4096)
def _parsed(answer: Answer) -> tuple[Any, ...]:
    """What math-verify reads: all of a formula, else the expression that it finds in the text."""
    from math_verify import parse

    text = _SPACED_DIGITS.sub("", answer.text)
    whole = parse(rf"\boxed{{{text}}}", parsing_timeout=None) if answer.is_formula else []
    return tuple(whole or parse(text, parsing_timeout=None))


@cache
def _silence() -> None:
    """math-verify warns that its own time limits are off: the process that this runs in has one."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)
