"""Rewards that compare text, and those for the form of a response: its tags, length and repetition."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import cos, pi
from typing import Any

from rl_compat.rewards.builtin.answers import last_tagged
from rl_compat.rewards.types import RewardOutcome, judged

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ENDS = string.whitespace + "\"'`*_.,;:!?"


def exact_match(response: str, ground_truth: Any) -> RewardOutcome:
    """1 if the answer equals the ground truth, or one of a list, after normalisation, else 0.

    The answer is the last `<answer>…</answer>`, or the whole response without one. Normalisation maps compatible
    Unicode forms, ignores case and repeated white space, and strips quotes, markup and punctuation at both ends.
    """
    answer = last_tagged(response, "answer")
    answer = response.strip() if answer is None else answer
    correct = normalised(answer) in {normalised(truth) for truth in truths(ground_truth)}
    return RewardOutcome(
        reward=float(correct), correct=correct, answer_found=bool(normalised(answer)), extras={"answer": answer[:200]}
    )


def qa_exact_match(response: str, ground_truth: Any) -> RewardOutcome:
    """1 if the last `<answer>…</answer>` is one of the golden answers, else 0. A response without the tag gets 0.

    Texts are compared in lower case without punctuation, articles (a, an, the) and repeated white space, as in SQuAD
    (Rajpurkar et al. 2016). The ground truth is a text, a list, or a mapping with the list under `target`.
    """
    answer = last_tagged(response, "answer")
    if answer is None:
        return judged(False, None)
    correct = squad_form(answer) in {squad_form(truth) for truth in truths(ground_truth)}
    return judged(correct, answer[:200])


def regex(response: str, ground_truth: Any, *, pattern: str, group: str = "") -> RewardOutcome:
    """1 if the pattern is found in the response, else 0. With `group`, the group must also equal the ground truth.

    `group` is the number or the name of a group of the last match, which is stripped and compared with the ground
    truth. The syntax of patterns is that of Python's `re`.
    """
    compiled = compiled_pattern(pattern, group)
    if not group:
        found = compiled.search(response) is not None
        return RewardOutcome(reward=float(found), correct=found, answer_found=found)
    matches = list(compiled.finditer(response))
    answer = matches[-1][int(group) if group.isdigit() else group] if matches else None
    answer = None if answer is None else answer.strip()
    correct = answer in {str(truth).strip() for truth in truths(ground_truth)}
    return judged(correct, answer and answer[:200])


@cache
def compiled_pattern(pattern: str, group: str = "") -> re.Pattern[str]:
    """The compiled pattern. Raises ValueError if it is invalid or does not have the group."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"the pattern `{pattern}` is not a valid regular expression: {error}") from error
    if group.isdigit() and int(group) > compiled.groups:
        raise ValueError(f"the pattern `{pattern}` has {compiled.groups} groups, and `group` is {group}")
    if group and not group.isdigit() and group not in compiled.groupindex:
        raise ValueError(f"the pattern `{pattern}` has no group named `{group}`")
    return compiled


def truths(ground_truth: Any) -> list[Any]:
    """The accepted answers: those of a list, those under `target` of a mapping, or the value alone.

    A float without a fraction becomes an integer, `5.0` is `5`: columns of integers with missing values are floats.
    """
    if isinstance(ground_truth, Mapping):
        ground_truth = ground_truth.get("target", [])
    accepted = ground_truth if isinstance(ground_truth, (list, tuple, set)) else [ground_truth]
    return [int(item) if isinstance(item, float) and item.is_integer() else item for item in accepted]


def normalised(value: Any) -> str:
    """A text in NFKC form and lower case, with single spaces and without punctuation at its ends."""
    return " ".join(unicodedata.normalize("NFKC", str(value)).casefold().split()).strip(_ENDS)


def squad_form(value: Any) -> str:
    """A text in lower case without punctuation, articles and repeated white space."""
    return " ".join(_ARTICLES.sub(" ", str(value).lower().translate(_NO_PUNCTUATION)).split())


def arithmetic(response: str, ground_truth: Any) -> RewardOutcome:
    """1 if the response, stripped of white space, equals the ground truth digit for digit, else 0."""
    answer = response.strip()
    is_number = answer.isascii() and answer.isdigit()
    return judged(answer in map(str, truths(ground_truth)), answer if is_number else None)


def format_tags(
    response: str, ground_truth: Any = None, *, tags: str = "think,answer", prompt_text: str = ""
) -> RewardOutcome:
    """1 if the response is `<think>…</think><answer>…</answer>` and nothing else, else 0.

    `tags` sets other tags, in order, separated by commas. Every tag opens and closes once and is not empty, and there
    is only white space between tags. The first opening tag may be missing if the prompt ends with it.
    """
    names = [name.strip() for name in tags.split(",") if name.strip()]
    opened = bool(names) and prompt_text.rstrip().endswith(f"<{names[0]}>")
    text = f"<{names[0]}>{response}" if opened and not response.lstrip().startswith(f"<{names[0]}>") else response
    return RewardOutcome(reward=float(has_form(text, names)))


def has_form(text: str, names: list[str]) -> bool:
    """Whether a text consists of the named tags in order, each once and not empty."""
    rest = text.strip()
    for name in names:
        start, end = f"<{name}>", f"</{name}>"
        if text.count(start) != 1 or text.count(end) != 1 or not rest.startswith(start):
            return False
        content, _, rest = rest.removeprefix(start).partition(end)
        if not content.strip() or any(re.search(f"</?{re.escape(other)}>", content) for other in names):
            return False
        rest = rest.lstrip()
    return not rest


def overlong(buffer: int) -> Callable[..., RewardOutcome]:
    """The penalty on responses close to the maximum length: 0, then falling linearly to -1 (Yu et al. 2025, "DAPO").

    min(-(length - (max_response_length - buffer)) / buffer, 0), in tokens. It continues to fall beyond the maximum.
    """

    def penalty(
        response: str, ground_truth: Any = None, *, response_ids: Sequence[int], max_response_length: int
    ) -> RewardOutcome:
        return RewardOutcome(reward=min(-(len(response_ids) - (max_response_length - buffer)) / buffer, 0.0))

    return penalty


def repetition(
    response: str, ground_truth: Any = None, *, ngram: int = 3, response_ids: Sequence[int] | None = None
) -> RewardOutcome:
    """Minus the fraction of n-grams that occurred before, in (-1, 0] (Yeo et al. 2025).

    Counted in tokens, or in words if only the text is known. 0 for a response with fewer than `ngram` of them.
    """
    units: Sequence[Any] = response.split() if response_ids is None else response_ids
    total = len(units) - ngram + 1
    if total <= 0:
        return RewardOutcome(reward=0.0)
    distinct = len({tuple(units[i : i + ngram]) for i in range(total)})
    return RewardOutcome(reward=distinct / total - 1.0)


def cosine_length(
    response: str,
    ground_truth: Any = None,
    *,
    correct: bool,
    response_ids: Sequence[int],
    max_response_length: int,
    correct_short: float = 2.0,
    correct_long: float = 1.0,
    wrong_short: float = -10.0,
    wrong_long: float = 0.0,
    exceeded: float = -10.0,
) -> RewardOutcome:
    """Favours short correct responses and long wrong ones (Yeo et al. 2025, "Demystifying Long CoT").

    The reward follows half a cosine from `short` at length 0 to `long` at `max_response_length` tokens L:
    long + (short - long) (1 + cos(pi length / L)) / 2. It is `exceeded` for a response of L tokens, which was
    truncated. `correct` is the verdict of the functions that judge correctness.
    """
    length = len(response_ids)
    if length >= max_response_length:
        return RewardOutcome(reward=exceeded)
    short, long = (correct_short, correct_long) if correct else (wrong_short, wrong_long)
    return RewardOutcome(reward=long + 0.5 * (short - long) * (1.0 + cos(pi * length / max_response_length)))
