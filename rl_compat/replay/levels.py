"""The levels of the buffer, and the rules by which groups move between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from rl_compat.config.types import SamplesConfig

ENTRY = np.dtype(
    [
        ("group", np.int64),
        ("key", np.uint64),  # of the prompt's row and the responses: equal for copies
        ("uses", np.int32),  # times trained on
        ("oldest", np.int64),  # oldest policy version of a token
        ("priority", np.float64),
        ("level", np.int8),
        ("copied", np.bool_),  # a newer group has the same responses
        ("part", np.int64),  # the table with the rows
        ("start", np.int64),  # the first of them
        ("count", np.int64),
    ],
    align=True,
)
"a group, without its rows"
Entries = np.ndarray[tuple[int], np.dtype[np.void]]
"groups in the order in which they were added"
Mask = NDArray[np.bool_]


class Level(IntEnum):
    """Where the rows of a group are in memory. The third level is the record on disk, which holds all groups."""

    HOT = 0
    "the newest groups, all of them"
    WARM = 1
    "those of highest priority among the others"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBounds:
    """What the rules of a buffer compare with."""

    settings: SamplesConfig
    hot: int
    "groups on the hot level"
    version: int
    "of the policy that learns"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRule:
    """Which groups leave a level of the buffer, and for which other one."""

    name: str
    "in the metric `replay/dropped/NAME`"
    matches: Callable[[Entries, ReplayBounds], Mask]
    """which groups move, from an array of them with the fields `group`, `uses`, `oldest` (policy version), `priority`,
    `level` (0 hot, 1 warm), `copied` and `count` (responses), and from the bounds `settings`, `hot` and `version`"""
    to: Level | None = None
    "None drops the group from memory"


def draw_priorities(entries: Entries, bounds: ReplayBounds) -> NDArray[np.float64]:
    """Priorities for a draw by the policy that learns."""
    found: NDArray[np.float64] = entries["priority"]
    if bounds.settings.replay.priority == "age":
        found = 1 / (1.0 + np.maximum(bounds.version - entries["oldest"], 0))
    return found


def _beyond_hot(entries: Entries, bounds: ReplayBounds) -> Mask:
    hot: Mask = entries["level"] == Level.HOT
    return hot & (np.cumsum(hot[::-1])[::-1] > bounds.hot)


def _beyond_capacity(entries: Entries, bounds: ReplayBounds) -> Mask:
    """The warm groups of lowest priority, the older one of two equals, as many as are too many."""
    found = np.zeros(len(entries), dtype=bool)
    warm = np.flatnonzero(entries["level"] == Level.WARM)
    too_many = min(len(warm), len(entries) - bounds.settings.replay.capacity)
    if too_many > 0:
        found[warm[np.argsort(draw_priorities(entries[warm], bounds), kind="stable")[:too_many]]] = True
    return found


RULES = (
    ReplayRule(name="copies", matches=lambda entries, bounds: entries["copied"]),
    ReplayRule(name="used_up", matches=lambda entries, bounds: entries["uses"] >= bounds.settings.most_uses),
    ReplayRule(
        name="too_old",
        matches=lambda entries, bounds: bounds.version - entries["oldest"] > bounds.settings.replay.max_staleness,
    ),
    ReplayRule(name="no_priority", matches=lambda entries, bounds: ~(entries["priority"] > 0)),
    ReplayRule(name="not_newest", matches=_beyond_hot, to=Level.WARM),
    ReplayRule(name="displaced", matches=_beyond_capacity),
)
"applied in this order after each step"
