"""Which of the recognised errors caused which, and which one to fix first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl_compat.doctor.explain.matching import ErrorMatch
from rl_compat.doctor.explain.patterns import SEVERITIES

EPISODE_LINES = 15
"errors this close together belong to one event, such as a chain of tracebacks"
RELATED_LINES = 5000
"within which a fault explains a later one by its layer alone; later ones belong to another event"


@dataclass(frozen=True, slots=True)
class Cause:
    """A recognised error that no other explains, and its consequences."""

    match: ErrorMatch
    consequences: tuple[ErrorMatch, ...] = ()
    "in the order of the log"

    @property
    def severity(self) -> int:
        """Position in SEVERITIES: its own, or that of the worst consequence."""
        return min(SEVERITIES.index(match.error.severity) for match in (self.match, *self.consequences))


def rank(matches: Sequence[ErrorMatch]) -> tuple[Cause, ...]:
    """The causes, the likeliest first.

    Faults come before warnings, early errors before late ones. Within one event, a group of close lines, the deeper
    layer comes first: the driver before the build, the build before a worker that died because of it.
    """
    causes = _tree(matches)
    causes.sort(key=lambda cause: cause.match.first)
    episodes = _episodes(causes)
    order = sorted(
        zip(causes, episodes, strict=True),
        key=lambda one: (one[0].severity, one[1], one[0].match.error.layer.depth, one[0].match.first),
    )
    return tuple(cause for cause, _ in order)


def explains(cause: ErrorMatch, consequence: ErrorMatch) -> bool:
    """Whether one error causes the other, according to the table entries of both and of their layers."""
    if cause.error.id == consequence.error.id:
        return False
    later = consequence.first >= cause.first
    error, layer = consequence.error, consequence.error.layer
    if cause.error.id in error.always_follows_from or (later and cause.error.id in error.follows_from):
        return True
    if cause.error.severity != "fault":
        return False
    layer_of_cause = cause.error.layer.id
    soon = later and consequence.first - cause.first <= RELATED_LINES
    return layer_of_cause in layer.always_follows_from or (soon and layer_of_cause in layer.follows_from)


def _tree(matches: Sequence[ErrorMatch]) -> list[Cause]:
    """The root causes, each with the matches that it explains."""
    root = {match.error.id: _root(match, matches) for match in matches}
    return [
        Cause(match, tuple(other for other in matches if other is not match and root[other.error.id] is match))
        for match in matches
        if root[match.error.id] is match
    ]


def _root(match: ErrorMatch, matches: Sequence[ErrorMatch]) -> ErrorMatch:
    """Follow the causes; of several, the deepest, then the earliest. A cycle ends where it was entered."""
    seen = {match.error.id}
    while True:
        reasons = [other for other in matches if other.error.id not in seen and explains(other, match)]
        if not reasons:
            return match
        match = min(reasons, key=lambda other: (other.error.layer.depth, other.first))
        seen.add(match.error.id)


def _episodes(causes: Sequence[Cause]) -> list[int]:
    """For causes in the order of the log, the number of the event of each."""
    numbers: list[int] = []
    for index, cause in enumerate(causes):
        near = index > 0 and cause.match.first - causes[index - 1].match.first <= EPISODE_LINES
        numbers.append(numbers[-1] if near else index)
    return numbers
