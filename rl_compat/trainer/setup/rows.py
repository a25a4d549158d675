"""Rows of the run's order, any number at a time."""

from __future__ import annotations

from collections.abc import Iterator


class Rows:
    """Takes batches of rows from an order as they are needed, and keeps what is left over for the next time."""

    def __init__(self, order: Iterator[list[int]], *, left_over: list[int] | None = None) -> None:
        self.left_over = list(left_over or [])
        "taken from the order and not given out: a run resumes with them"
        self._order = order

    def take(self, count: int) -> list[int]:
        """The next `count` rows."""
        while len(self.left_over) < count:
            self.left_over += next(self._order)
        taken, self.left_over = self.left_over[:count], self.left_over[count:]
        return taken
