"""The reward for multiple choice: the letter of the final answer."""

from __future__ import annotations

import re
from typing import Any

from rl_compat.rewards.builtin.answers import last_announced, last_boxed, last_tagged
from rl_compat.rewards.types import RewardOutcome, judged

_LETTER = r"[A-Z]"
_WRAPPED = re.compile(rf"[(\[]\s*({_LETTER})\s*[)\]]")
_BARE = re.compile(rf"^[\s(\[*_`\"'$]*({_LETTER})(?![A-Za-z0-9'’])")
_CHOICE_IS = re.compile(rf"\b(?:option|choice)s?\b\s*(?:is|are|:|=)?\s*[*_`\"'(\[$]*\s*({_LETTER})(?![A-Za-z0-9'’])")
_COMMAND = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox)\s*")


def multiple_choice(response: str, ground_truth: Any) -> RewardOutcome:
    r"""1 if the letter of the final answer is that of the ground truth, else 0.

    The letter is read from the last `\boxed{…}`, the last `<answer>…</answer>`, the last `answer is …` or `answer: …`,
    the last `option X`, a last line that is or begins with `X`, `(X)` or `X.`, or the last `(X)`, in this order. An
    article or a pronoun in a sentence (`A cat`, `I think`) is not an answer.
    """
    letter = find_letter(response)
    return judged(letter is not None and letter == truth_letter(ground_truth), letter)


def find_letter(response: str) -> str | None:
    """The upper-case letter of the final answer of a response, or None."""
    for marked in (last_boxed(response), last_tagged(response, "answer"), last_announced(response)):
        letter = None if marked is None else _leading(marked)
        if letter is not None:
            return letter
    named = _CHOICE_IS.findall(response)
    if named:
        return str(named[-1])
    lines = response.strip().splitlines()
    letter = _alone(lines[-1]) if lines else None
    wrapped = _WRAPPED.findall(response)
    return letter or (str(wrapped[-1]) if wrapped else None)


def truth_letter(ground_truth: Any) -> str | None:
    """The letter of a ground truth such as `C`, `(C)`, `c` or `C. Paris`, or None."""
    text = str(ground_truth).strip()
    if len(text) == 1 and text.isascii() and text.isalpha():
        return text.upper()
    wrapped = _WRAPPED.match(text.upper())
    return wrapped[1] if wrapped else _alone(text)


def _leading(text: str) -> str | None:
    """The letter that a text begins with, ignoring brackets, markup and the word `option`."""
    text = _COMMAND.sub("", text).replace("{", "").replace("}", "").strip()
    text = re.sub(r"^(?:the\s+)?(?:option|choice|letter)\s+", "", text, flags=re.IGNORECASE)
    if re.fullmatch(r"[a-z]", text):
        return text.upper()
    match = _BARE.match(text)
    if match is None:
        return None
    is_word = re.match(r"[\s]+[a-z]", text[match.end() :]) is not None and match[1] in "AI"
    return None if is_word else match[1]


def _alone(line: str) -> str | None:
    """The letter of a line that contains nothing else, or that begins with `X.`, `X)` or `(X)`."""
    match = re.match(rf"^[\s*_`\"']*[(\[]?({_LETTER})(?:[)\].:]|[\s*_`\"'.)\]]*$)", line)
    return match[1] if match else None
