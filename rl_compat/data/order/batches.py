"""The order of training: endless batches of row indexes, epoch by epoch, with a position to resume at."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy

from rl_compat import seeds
from rl_compat.data.encode.prompts import check_batch_size
from rl_compat.data.order.fingerprint import Fingerprint
from rl_compat.data.read.reading import name_rows
from rl_compat.errors import DataError

Keep = Callable[[int], bool]


class Order(Iterator[list[int]], Protocol):
    """Endless batches of row indexes."""

    @property
    def steps_per_epoch(self) -> int: ...

    @property
    def position(self) -> tuple[int, int]:
        """The epoch, and the number of its rows that were drawn."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position, and what identifies the data and the order."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position. Raises DataError when the data or the order differs."""
        ...


def epoch_order(num_rows: int, *, shuffle: bool, seed: int, epoch: int) -> Sequence[int]:
    """The rows of one epoch: a permutation that depends only on the seed and the epoch."""
    if not shuffle:
        return range(num_rows)
    generator = random.Random(f"{seed}:{epoch}")
    keys = numpy.fromiter((generator.random() for _ in range(num_rows)), dtype=numpy.float64, count=num_rows)
    return numpy.argsort(keys, kind="stable").data


class Epochs:
    """The rows of one source, epoch after epoch."""

    def __init__(self, num_rows: int, *, shuffle: bool, seed: int, first_row: int = 0) -> None:
        self.num_rows = num_rows
        self._first_row = first_row
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = -1
        self._order: Sequence[int] = ()

    def row(self, epoch: int, offset: int) -> int:
        """The index of the row at a position of an epoch."""
        if epoch != self._epoch:
            self._order = epoch_order(self.num_rows, shuffle=self._shuffle, seed=self._seed, epoch=epoch)
            self._epoch = epoch
        return self._first_row + self._order[offset]


class PromptOrder(Order):
    """Batches from one source. An incomplete last batch is dropped, and the next epoch begins."""

    def __init__(
        self,
        num_rows: int,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        keep: Keep = lambda row: True,
        fingerprint: Fingerprint | None = None,
    ) -> None:
        """`keep` tells whether a row is usable; `fingerprint` is that of the rows."""
        check_batch_size(num_rows, batch_size)
        self._epochs = Epochs(num_rows, shuffle=shuffle, seed=seed)
        self._batch_size = batch_size
        self._keep = keep
        self._fingerprint = fingerprint
        self._identity = {"num_rows": num_rows, "shuffle": shuffle, "seed": seed}
        self._epoch = 0
        self._offset = 0

    @property
    def steps_per_epoch(self) -> int:
        """An epoch has fewer steps where streamed rows are left out."""
        return self._epochs.num_rows // self._batch_size

    @property
    def position(self) -> tuple[int, int]:
        return self._epoch, self._offset

    def __next__(self) -> list[int]:
        """The indexes of the next batch. Raises DataError when a whole epoch does not fill one."""
        batch, tried = self._rest_of_epoch(), 0
        while len(batch) < self._batch_size:
            if tried:
                raise _too_few(len(batch), self._batch_size)
            self._epoch, self._offset, tried = self._epoch + 1, 0, 1
            batch = self._rest_of_epoch()
        return batch

    def _rest_of_epoch(self) -> list[int]:
        """The next usable rows, up to a batch or the end of the epoch."""
        batch: list[int] = []
        while len(batch) < self._batch_size and self._offset < self._epochs.num_rows:
            row = self._epochs.row(self._epoch, self._offset)
            self._offset += 1
            if self._keep(row):
                batch.append(row)
        return batch

    def state_dict(self) -> dict[str, Any]:
        place = {"epoch": self._epoch, "offset": self._offset}
        return place | self._identity | _rows_state(self._fingerprint)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position. Raises DataError when the data or the order differs.

        The batch size may differ, since the position counts rows.
        """
        check_same(state, self._identity, self._fingerprint)
        self._epoch, self._offset = int(state["epoch"]), int(state["offset"])


class MixtureOrder(Order):
    """Batches from several sources in fixed shares. Each source has its own epochs.

    After any number of rows each source is within one row of its share. `datasets.interleave_datasets` draws the source
    at random instead: with weights 1 and 3 it was 10 rows off within the first 400. An epoch of the mixture has as many
    rows as all sources together, whatever the weights, so a small source with a large weight repeats.
    """

    def __init__(
        self,
        counts: Sequence[int],
        weights: Sequence[float],
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        keep: Keep = lambda row: True,
        fingerprint: Fingerprint | None = None,
    ) -> None:
        """`counts` has the number of rows of each source; their indexes follow each other."""
        check_batch_size(sum(counts), batch_size)
        self._sources = [
            Epochs(count, shuffle=shuffle, seed=seeds.derive(seed, "source", index), first_row=sum(counts[:index]))
            for index, count in enumerate(counts)
        ]
        self._shares = [weight / sum(weights) for weight in weights]
        self._batch_size = batch_size
        self._keep = keep
        self._fingerprint = fingerprint
        self._identity = {"num_rows": list(counts), "weights": list(weights), "shuffle": shuffle, "seed": seed}
        self._given = [0] * len(counts)
        self._behind = [0] * len(counts)

    @property
    def steps_per_epoch(self) -> int:
        return sum(source.num_rows for source in self._sources) // self._batch_size

    @property
    def position(self) -> tuple[int, int]:
        return divmod(sum(self._given), self.steps_per_epoch * self._batch_size)

    def __next__(self) -> list[int]:
        """The indexes of the next batch. Raises DataError when a source has no usable row."""
        return [self._draw() for _ in range(self._batch_size)]

    def _draw(self) -> int:
        """A row of the source that is furthest behind its share, of the first one in a tie."""
        total = sum(self._given) + 1
        lag = [share * total - given for share, given in zip(self._shares, self._given, strict=True)]
        index = max(range(len(lag)), key=lag.__getitem__)
        source = self._sources[index]
        for _ in range(2 * source.num_rows):
            row = source.row(*divmod(self._behind[index], source.num_rows))
            self._behind[index] += 1
            if self._keep(row):
                self._given[index] += 1
                return row
        raise _too_few(0, 1)

    def state_dict(self) -> dict[str, Any]:
        place = {"given": list(self._given), "behind": list(self._behind)}
        return place | self._identity | _rows_state(self._fingerprint)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position; the batch size may differ."""
        check_same(state, self._identity, self._fingerprint)
        self._given, self._behind = [int(n) for n in state["given"]], [int(n) for n in state["behind"]]


def check_same(state: dict[str, Any], mine: dict[str, Any], fingerprint: Fingerprint | None = None) -> None:
    """Raise DataError when the data or the order of a saved position differs."""
    for key, value in mine.items():
        if state.get(key) != value:
            raise DataError(
                f"the checkpoint has {_NAMES[key]} {_shown(state.get(key))}, this run {_shown(value)}", hint=_WAYS
            )
    if fingerprint is not None and "rows" in state:
        changed = fingerprint.changed(state["rows"])
        if changed:
            raise DataError(f"the training data changed since the checkpoint: {name_rows(changed)}", hint=_WAYS)


_WAYS = (
    "resume with the same data and data settings, or start at the first epoch with `data.on_change=restart`, "
    "or set `trainer.output_dir` to a new folder"
)


def _rows_state(fingerprint: Fingerprint | None) -> dict[str, str]:
    return {} if fingerprint is None else {"rows": fingerprint.state()}


def _shown(value: Any) -> str:
    return " + ".join(map(str, value)) if isinstance(value, list) else str(value)


def _too_few(num_rows: int, batch_size: int) -> DataError:
    return DataError(
        f"an epoch of the streamed data has {num_rows} usable rows, and a batch needs {batch_size}",
        hint="set a smaller `trainer.batch_size` or a larger `data.max_prompt_length`; `rlc data check` lists the rows",
    )


_NAMES = {
    "num_rows": "this number of training rows:",
    "weights": "`data.mixture_weights`",
    "shuffle": "`data.shuffle`",
    "seed": "`data.seed`",
}
