"""The order in which rows are trained on: endless batches, epoch by epoch, that can be resumed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from rl_compat.data.prompts import check_batch_size
from rl_compat.errors import DataError


def epoch_order(num_rows: int, *, shuffle: bool, seed: int, epoch: int) -> list[int]:
    """The rows of one epoch: a permutation that depends on the seed and the epoch only."""
    if not shuffle:
        return list(range(num_rows))
    generator = random.Random(f"{seed}:{epoch}")
    keys = [generator.random() for _ in range(num_rows)]
    return sorted(range(num_rows), key=keys.__getitem__)


class PromptOrder:
    """Endless batches of row indexes. A last batch that is not full is dropped, and the next epoch begins."""

    def __init__(self, num_rows: int, batch_size: int, *, shuffle: bool, seed: int) -> None:
        check_batch_size(num_rows, batch_size)
        self._num_rows = num_rows
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = 0
        self._offset = 0
        self._order = self._order_of(0)

    @property
    def steps_per_epoch(self) -> int:
        return self._num_rows // self._batch_size

    @property
    def position(self) -> tuple[int, int]:
        """The epoch and the number of its rows already given out."""
        return self._epoch, self._offset

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        """The indexes of the next batch."""
        if self._offset + self._batch_size > self._num_rows:
            self._epoch, self._offset = self._epoch + 1, 0
            self._order = self._order_of(self._epoch)
        batch = self._order[self._offset : self._offset + self._batch_size]
        self._offset += self._batch_size
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The position, and what it is a position in."""
        return {
            "epoch": self._epoch,
            "offset": self._offset,
            "num_rows": self._num_rows,
            "shuffle": self._shuffle,
            "seed": self._seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position. Raises DataError when it belongs to other data or another order.

        The batch size may differ: the position counts rows.
        """
        for key, mine in (("num_rows", self._num_rows), ("shuffle", self._shuffle), ("seed", self._seed)):
            if state[key] != mine:
                raise DataError(
                    f"the checkpoint was made with {_NAMES[key]} {state[key]}, this run has {mine}",
                    hint="resume with the same data settings, or start anew with `trainer.resume=never`",
                )
        self._epoch, self._offset = int(state["epoch"]), int(state["offset"])
        self._order = self._order_of(self._epoch)

    def _order_of(self, epoch: int) -> list[int]:
        return epoch_order(self._num_rows, shuffle=self._shuffle, seed=self._seed, epoch=epoch)


_NAMES = {"num_rows": "a number of training prompts of", "shuffle": "`data.shuffle`", "seed": "`data.seed`"}
