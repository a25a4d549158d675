"""Which of the recognised errors caused which, and which one to mend first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl_compat.doctor.explain.matching import Match
from rl_compat.doctor.explain.patterns import SEVERITIES

EPISODE_LINES = 15
"errors this close together belong to one event, such as a chain of tracebacks"
RELATED_LINES = 5000
"within which a fault explains a later one by its layer alone: what comes after more than that is another event"


@dataclass(frozen=True, slots=True)
class Cause:
    """A recognised error that no other explains, and what follows from it."""

    match: Match
    consequences: tuple[Match, ...] = ()
    "in the order of the log"

    @property
    def severity(self) -> int:
        """Position in SEVERITIES: its own, or that of the worst consequence."""
        return min(SEVERITIES.index(match.error.severity) for match in (self.match, *self.consequences))


def rank(matches: Sequence[Match]) -> tuple[Cause, ...]:
    """The causes, the likeliest first.

    Faults go before warnings and what came early before what came late. Within one event, which is a run of close
    lines, the deeper layer goes first: the driver before the build, the build before a worker that died of it.
    """
    causes = _tree(matches)
    causes.sort(key=lambda cause: cause.match.first)
    episodes = _episodes(causes)
    order = sorted(range(len(causes)), key=lambda i: (causes[i].severity, episodes[i], *_within(causes[i])))
    return tuple(causes[i] for i in order)


def explains(cause: Match, consequence: Match) -> bool:
    """Whether one error is a reason for the other, by what the table says of both and of their layers."""
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


def _tree(matches: Sequence[Match]) -> list[Cause]:
    """Each match under the cause at the root of what explains it."""
    root = {match.error.id: _root(match, matches) for match in matches}
    return [
        Cause(match, tuple(other for other in matches if other is not match and root[other.error.id] is match))
        for match in matches
        if root[match.error.id] is match
    ]


def _root(match: Match, matches: Sequence[Match]) -> Match:
    """Follow the reasons down; of several the deepest, then the earliest. A circle ends where it was entered."""
    seen = {match.error.id}
    while True:
        reasons = [other for other in matches if other.error.id not in seen and explains(other, match)]
        if not reasons:
            return match
        match = min(reasons, key=lambda other: (other.error.depth, other.first))
        seen.add(match.error.id)


def _episodes(causes: Sequence[Cause]) -> list[int]:
    """For causes in the order of the log, the number of the event that each belongs to."""
    numbers: list[int] = []
    for index, cause in enumerate(causes):
        near = index > 0 and cause.match.first - causes[index - 1].match.first <= EPISODE_LINES
        numbers.append(numbers[-1] if near else index)
    return numbers


def _within(cause: Cause) -> tuple[int, int]:
    return cause.match.error.depth, cause.match.first
