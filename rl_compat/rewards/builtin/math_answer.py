"""Rewards for mathematics: whether the final answer equals the ground truth, decided by the math-verify library."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from rl_compat.rewards.builtin.answers import last_announced, last_boxed
from rl_compat.rewards.types import Failure, RewardOutcome

TAIL_CHARACTERS = 2000
"the end of a response that is searched for an expression if it has neither a box nor an announced answer"
SHOWN_CHARACTERS = 200

_SPACED_DIGITS = re.compile(r"(?<=\d)(?:\\[,!;: ]|\{,\}|~)(?=\d{3}(?!\d))")
_LAYOUT = re.compile(r"\\(?:left|right|displaystyle|big|Big|bigg|Bigg)\b|\\[,!;: ]|\s+")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit|mbox)\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dtc]frac\b")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[^\W\d_]{2,}")


@dataclass(frozen=True, slots=True)
class Answer:
    """A final answer as written in the response."""

    text: str
    is_formula: bool
    "the whole text is the expression; otherwise the text is searched for one"


def math(response: str, ground_truth: Any) -> RewardOutcome:
    r"""1 if the final answer equals the ground truth as a mathematical expression, else 0.

    The answer is the last `\boxed{…}`; without a box, the text after the last `answer is` or `####`; else the last
    expression that math-verify finds. Fractions, roots, sets, intervals, matrices, percentages and units are compared
    by value, text by its letters. If the ground truth is a list, the answer must equal one of its items.
    """
    return _judge(find_answer(response), ground_truth, right=1.0, wrong=0.0)


def math_dapo(response: str, ground_truth: Any) -> RewardOutcome:
    r"""Like `math` with rewards +1 and -1. The last `Answer: …` takes precedence over a box, as in the DAPO prompts."""
    announced = last_announced(response)
    return _judge(find_answer(response) if announced is None else _said(announced), ground_truth, right=1.0, wrong=-1.0)


def find_answer(response: str) -> Answer | None:
    """The final answer, None for an empty response."""
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
    """Whether an answer equals the ground truth, as text or as an expression; None if math-verify cannot parse it.

    Raises the error of sympy if two expressions cannot be compared.
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
    """An expression without spaces, bracket sizes, dollar signs and the final full stop, which only affect layout."""
    text = _TEXT.sub(r"\1", _FRACTION.sub(r"\\frac", _SPACED_DIGITS.sub("", text)))
    return _LAYOUT.sub("", text).strip("$").rstrip(".").strip("$")


def _said(text: str) -> Answer | None:
    """The answer after a phrase. It is a formula unless it contains dollar signs or words."""
    boxed = last_boxed(text)
    if boxed is not None or not text:
        return Answer(boxed, True) if boxed else None
    prose = "$" in text or _WORD.search(_COMMAND.sub(" ", _TEXT.sub(" ", text))) is not None
    return Answer(text, not prose)


def _judge(answer: Answer | None, ground_truth: Any, *, right: float, wrong: float) -> RewardOutcome:
    if answer is None:
        return RewardOutcome(reward=wrong, correct=False, answer_found=False, extras={"answer": None})
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
    return RewardOutcome(
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
    """The expressions that math-verify parses: the whole of a formula, else those it finds in the text."""
    from math_verify import parse

    text = _SPACED_DIGITS.sub("", answer.text)
    whole = parse(rf"\boxed{{{text}}}", parsing_timeout=None) if answer.is_formula else []
    return tuple(whole or parse(text, parsing_timeout=None))


@cache
def _silence() -> None:
    """Suppress the warning that the time limits of math-verify are off. This process has its own time limit."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)
