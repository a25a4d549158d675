"""The rows that a run draws from its data, on their way from the rollout to the learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rl_compat.data.order.batches import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a run is in its data."""

    epoch: int
    order: dict[str, Any]
    pending: tuple[int, ...]
    "rows that were read from the order and not used, which come first"
    num_draws: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRows:
    """Rows that are sampled together."""

    number: int
    "from 1; that of the step, where every step has one draw"
    rows: Sequence[int]
    position: Position
    "after the draw"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPart:
    """What a draw gives the learner, or a part of it."""

    sampled: Any
    "what the recipe made of the rows"
    load: float
    "share of a step that it fills"
    position: Position
    "after the rows of this part"


class Rows:
    """The rows of a run in their order, and the position in them."""

    def __init__(self, order: Order) -> None:
        self.pending: list[int] = []
        "rows that were read from the order and not drawn"
        self.num_draws = 0
        self._order = order

    def take(self, count: int) -> list[int]:
        """The next `count` rows."""
        while len(self.pending) < count:
            self.pending += next(self._order)
        taken, self.pending = self.pending[:count], self.pending[count:]
        return taken

    def draw(self, count: int) -> DrawnRows:
        """The next `count` rows as the next draw."""
        rows, self.num_draws = self.take(count), self.num_draws + 1
        return DrawnRows(number=self.num_draws, rows=rows, position=self.position)

    @property
    def position(self) -> Position:
        return Position(
            epoch=self._order.position[0],
            order=self._order.state_dict(),
            pending=tuple(self.pending),
            num_draws=self.num_draws,
        )


def parts_of(draw: DrawnRows, sampled: Sequence[tuple[Any, float]], position: Position) -> list[DrawnPart]:
    """What the recipe made of a draw, one part or one for each row, with their loads. `position` is after all rows."""
    assert len(sampled) in (1, len(draw.rows))
    ends = [len(draw.rows)] if len(sampled) == 1 else range(1, len(draw.rows) + 1)
    return [
        DrawnPart(
            sampled=part,
            load=load,
            position=replace(position, pending=(*draw.rows[end:], *position.pending)),
        )
        for end, (part, load) in zip(ends, sampled, strict=True)
    ]
