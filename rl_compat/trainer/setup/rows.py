"""Rows of the run's order, in batches of any size."""

from __future__ import annotations

from collections.abc import Iterator


class Rows:
    """Takes batches of rows from an order and keeps the remaining rows for the next batch."""

    def __init__(self, order: Iterator[list[int]], *, left_over: list[int] | None = None) -> None:
        self.left_over = list(left_over or [])
        "taken from the order and not yet returned; part of the state of a run"
        self._order = order

    def take(self, count: int) -> list[int]:
        """The next `count` rows."""
        while len(self.left_over) < count:
            self.left_over += next(self._order)
        taken, self.left_over = self.left_over[:count], self.left_over[count:]
        return taken
