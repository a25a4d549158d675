"""Rewards that compare texts: equal after normalisation, equal as an answer to a question, matched by a pattern."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Mapping
from functools import cache
from typing import Any

from rl_compat.rewards.builtin.answers import last_tagged
from rl_compat.rewards.types import Outcome

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ENDS = string.whitespace + "\"'`*_.,;:!?"


def exact_match(response: str, ground_truth: Any) -> Outcome:
    """1 when the answer is the ground truth, or one of a list, after normalisation, else 0.

    The answer is the last `<answer>…</answer>`, or without one the whole response. Normalised are Unicode's
    compatible forms, case, runs of white space, and quotes, markup and punctuation at the ends.
    """
    answer = last_tagged(response, "answer")
    answer = response.strip() if answer is None else answer
    correct = normalised(answer) in {normalised(truth) for truth in truths(ground_truth)}
    return Outcome(
        reward=float(correct), correct=correct, answer_found=bool(normalised(answer)), extras={"answer": answer[:200]}
    )


def qa_exact_match(response: str, ground_truth: Any) -> Outcome:
    """1 when the last `<answer>…</answer>` is one of the golden answers, else 0, also without such a tag.

    Compared in lower case without punctuation, articles (a, an, the) and runs of white space, as SQuAD does
    (Rajpurkar et al. 2016). The ground truth is a text, a list, or a mapping with the list under `target`.
    """
    answer = last_tagged(response, "answer")
    if answer is None:
        return Outcome(reward=0.0, correct=False, answer_found=False, extras={"answer": None})
    correct = squad_form(answer) in {squad_form(truth) for truth in truths(ground_truth)}
    return Outcome(reward=float(correct), correct=correct, answer_found=True, extras={"answer": answer[:200]})


def regex(response: str, ground_truth: Any, *, pattern: str, group: str = "") -> Outcome:
    """1 when the pattern is found in the response, else 0; with `group`, when what the group holds is also the truth.

    `group` is the number or the name of a group of the last match, compared with the ground truth without white space
    around both. Patterns are those of Python's `re`.
    """
    compiled = compiled_pattern(pattern, group)
    if not group:
        found = compiled.search(response) is not None
        return Outcome(reward=float(found), correct=found, answer_found=found)
    matches = list(compiled.finditer(response))
    answer = matches[-1][int(group) if group.isdigit() else group] if matches else None
    answer = None if answer is None else answer.strip()
    correct = answer in {str(truth).strip() for truth in truths(ground_truth)}
    return Outcome(
        reward=float(correct),
        correct=correct,
        answer_found=answer is not None,
        extras={"answer": answer and answer[:200]},
    )


@cache
def compiled_pattern(pattern: str, group: str = "") -> re.Pattern[str]:
    """The pattern, checked to have the group. Raises ValueError."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"the pattern `{pattern}` is no regular expression: {error}") from error
    if group.isdigit() and int(group) > compiled.groups:
        raise ValueError(f"the pattern `{pattern}` has {compiled.groups} groups and group {group} was asked for")
    if group and not group.isdigit() and group not in compiled.groupindex:
        raise ValueError(f"the pattern `{pattern}` has no group named `{group}`")
    return compiled


def truths(ground_truth: Any) -> list[Any]:
    """The accepted answers: those of a list, those under `target` of a mapping, or the value alone."""
    if isinstance(ground_truth, Mapping):
        ground_truth = ground_truth.get("target", [])
    return list(ground_truth) if isinstance(ground_truth, (list, tuple, set)) else [ground_truth]


def normalised(value: Any) -> str:
    """A text in compatible forms and lower case, single spaces, nothing but letters and digits at its ends."""
    return " ".join(unicodedata.normalize("NFKC", str(value)).casefold().split()).strip(_ENDS)


def squad_form(value: Any) -> str:
    """A text in lower case without punctuation, articles and runs of white space."""
    return " ".join(_ARTICLES.sub(" ", str(value).lower().translate(_NO_PUNCTUATION)).split())
