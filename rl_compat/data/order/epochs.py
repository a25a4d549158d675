"""The order of rows in each epoch, a function of the seed, the epoch and the position."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from rl_compat.data.read.records import Piece

BLOCK_ROWS = 8192
BLOCK_BYTES = 8 * 2**20
"limits of a block: the rows of a streamed dataset that are in memory and shuffled together"


class Epochs(Protocol):
    """Epochs over the rows of one source."""

    @property
    def num_rows(self) -> int: ...

    def row(self, epoch: int, offset: int) -> int:
        """The index of the row at a position of an epoch."""
        ...


def epoch_order(num_rows: int, *, shuffle: bool, seed: int, epoch: int) -> list[int]:
    """The rows of one epoch: a permutation that depends only on the seed and the epoch."""
    return _permutation(num_rows, f"{seed}:{epoch}") if shuffle else list(range(num_rows))


class WholeEpochs:
    """Epochs over rows that are all in memory, shuffled as a whole."""

    def __init__(self, num_rows: int, *, shuffle: bool, seed: int, first_row: int = 0) -> None:
        self.num_rows = num_rows
        self._first_row = first_row
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = -1
        self._order: list[int] = []

    def row(self, epoch: int, offset: int) -> int:
        if epoch != self._epoch:
            self._order = epoch_order(self.num_rows, shuffle=self._shuffle, seed=self._seed, epoch=epoch)
            self._epoch = epoch
        return self._first_row + self._order[offset]


class BlockEpochs:
    """Epochs over streamed rows: the pieces are shuffled, consecutive pieces form blocks, each block is shuffled.

    A block has at most `block_rows` rows and `block_bytes` bytes, or a single piece, so resuming at any position reads
    one block. `datasets` shuffles a stream with a buffer whose content a resumed run loses. The pieces of a stream
    that is only read in its order keep that order.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        *,
        shuffle: bool,
        seed: int,
        block_rows: int = BLOCK_ROWS,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.num_rows = sum(piece.num_rows for piece in pieces)
        self._pieces = pieces
        self._shuffle = shuffle
        self._seed = seed
        self._limits = (block_rows, block_bytes)
        self._epoch = -1
        self._starts: list[int] = []
        self._blocks: list[list[Piece]] = []
        self._block = -1
        self._rows: list[int] = []

    def row(self, epoch: int, offset: int) -> int:
        if epoch != self._epoch:
            self._begin(epoch)
        block = bisect_right(self._starts, offset) - 1
        if block != self._block:
            self._block, self._rows = block, self._rows_of(block)
        return self._rows[offset - self._starts[block]]

    def _begin(self, epoch: int) -> None:
        runs = _runs(self._pieces)
        order = epoch_order(len(runs), shuffle=self._shuffle, seed=self._seed, epoch=epoch)
        self._blocks = _blocks([piece for index in order for piece in runs[index]], *self._limits)
        self._starts, start = [], 0
        for block in self._blocks:
            self._starts.append(start)
            start += sum(piece.num_rows for piece in block)
        self._epoch, self._block = epoch, -1

    def _rows_of(self, block: int) -> list[int]:
        pieces = self._blocks[block]
        rows = [row for piece in pieces for row in range(piece.first_row, piece.first_row + piece.num_rows)]
        if not self._shuffle:
            return rows
        return [rows[index] for index in _permutation(len(rows), f"{self._seed}:{self._epoch}:{block}")]


def _runs(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces of each stream together, in order; any other piece alone."""
    runs: list[list[Piece]] = []
    for piece in pieces:
        if piece.follows and runs and runs[-1][-1].follows and runs[-1][-1].file == piece.file:
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return runs


def _blocks(pieces: Sequence[Piece], most_rows: int, most_bytes: int) -> list[list[Piece]]:
    blocks: list[list[Piece]] = []
    num_rows = num_bytes = 0
    for piece in pieces:
        num_rows, num_bytes = num_rows + piece.num_rows, num_bytes + piece.num_bytes
        if not blocks or num_rows > most_rows or num_bytes > most_bytes:
            blocks.append([])
            num_rows, num_bytes = piece.num_rows, piece.num_bytes
        blocks[-1].append(piece)
    return blocks


def _permutation(count: int, seed: str) -> list[int]:
    generator = random.Random(seed)
    keys = [generator.random() for _ in range(count)]
    return sorted(range(count), key=keys.__getitem__)
