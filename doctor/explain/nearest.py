"""The known errors that share the rarer words of an unrecognised text."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from rl_compat.doctor.explain.matching import without_prefix
from rl_compat.doctor.explain.patterns import KnownError, known_errors
from rl_compat.doctor.explain.reading import Line

THRESHOLD = 0.3
"fraction of the word weight of a known error that a line must contain"
LEAST_WORDS = 3
"that a line and an error must have in common"
MOST = 3

_WORD = re.compile(r"[A-Za-z]{3,40}|\d{2,8}")
_PART = re.compile(r"[A-Z][a-z]{2,20}")
_COMMON = frozenset(
    """a an and are as at be but by can could error errors exception failed file for from has have if in is it line more
    must no not of on or please raise runtime see set so than that the this to use value was when which with you your
    runtimeerror valueerror importerror oserror typeerror assertionerror keyerror attributeerror import cuda torch
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class SimilarError:
    """A known error that resembles a line."""

    error: KnownError
    line: Line
    score: float
    shared: tuple[str, ...]
    "common words, the rarest first"


def nearest_errors(lines: Iterable[Line]) -> tuple[SimilarError, ...]:
    """At most MOST known errors, each with the line that resembles it most, best first."""
    best: dict[str, SimilarError] = {}
    for line in lines:
        words = words_of(without_prefix(line.text)[:2000])
        for error in known_errors():
            candidate = _compare(error, line, words)
            if candidate and candidate.score > (best[error.id].score if error.id in best else 0.0):
                best[error.id] = candidate
    return tuple(sorted(best.values(), key=lambda found: -found.score)[:MOST])


def words_of(text: str) -> frozenset[str]:
    """`CUBLAS_STATUS_ALLOC_FAILED` as cublas, status, alloc; `OutOfMemoryError` also as its parts."""
    words = {word.lower() for word in _WORD.findall(text)} | {part.lower() for part in _PART.findall(text)}
    return frozenset(words - _COMMON)


def _compare(error: KnownError, line: Line, words: frozenset[str]) -> SimilarError | None:
    weights = _weights()
    best: SimilarError | None = None
    for known in _texts(error):
        shared = words & known
        if len(shared) < LEAST_WORDS:
            continue
        score = sum(weights[word] for word in shared) / sum(weights[word] for word in known)
        if score >= THRESHOLD and (best is None or score > best.score):
            best = SimilarError(error, line, score, tuple(sorted(shared, key=lambda word: (-weights[word], word))))
    return best


@cache
def _texts(error: KnownError) -> tuple[frozenset[str], ...]:
    """The words of the sample, and of sample and title together."""
    sample = words_of(error.sample)
    return sample, sample | words_of(error.title)


@cache
def _weights() -> Counter[str]:
    """How rare each word is among the known errors: log(1 + errors / errors with the word)."""
    errors: Sequence[KnownError] = known_errors()
    counted = Counter(word for error in errors for word in frozenset().union(*_texts(error)))
    return Counter({word: math.log(1 + len(errors) / count) for word, count in counted.items()})  # type: ignore[misc]
