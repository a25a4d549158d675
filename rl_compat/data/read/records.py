"""What rows are read from: files, tables and streams of `datasets`, and Python objects; and rows kept on disk."""

from __future__ import annotations

import math
import os
import pickle
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_compat.data.form.columns import Record, plain
from rl_compat.data.read.files import BATCH_ROWS, check_file, reading_errors, records_in, rows_of, uncompressed_bytes
from rl_compat.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Records under a name."""

    name: str
    begin: Callable[[], Iterable[Mapping[str, Any]]]
    "begins a pass over them"
    num_bytes: float = 0
    "uncompressed; 0 for records that are in memory, infinite for a stream"

    def read(self, limit: int | None = None) -> Iterator[Record]:
        """One pass over the records, at most `limit` of them. Raises DataError."""
        with reading_errors(self.name):
            for index, row in enumerate(islice(self.begin(), limit)):
                if not isinstance(row, Mapping):
                    raise DataError(
                        f"row {index} of `{self.name}` is a {type(row).__name__}, not a mapping from column to value"
                    )
                yield plain(row)


def open_file(path: Path, *, name: str) -> Records:
    """The records of a data file, read as a stream in bounded memory. Raises DataError."""
    check_file(path)
    return Records(name=name, begin=partial(records_in, path, name), num_bytes=uncompressed_bytes(path, name))


def as_source(
    data: str | Dataset | IterableDataset | Sequence[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]],
    *,
    name: str = "data",
) -> str | Records:
    """Data from Python as a source, usable in place of a name in `data.train_files`.

    A name, a `datasets.Dataset`, a `datasets.IterableDataset`, rows in a list, or a function that returns an iterator
    over rows. `name` appears in messages. Raises DataError for anything else.
    """
    import datasets

    if isinstance(data, str):
        return data
    if isinstance(data, datasets.Dataset):
        return table_records(data, name=name)
    if isinstance(data, datasets.IterableDataset):
        return Records(name=name, begin=partial(iter, data), num_bytes=math.inf)
    if isinstance(data, dict):
        splits = ", ".join(f'`["{key}"]`' for key in data)
        raise DataError(f"`{name}` is a {type(data).__name__}, not rows", hint=f"pass one of its values: {splits}")
    if isinstance(data, Sequence):
        return Records(name=name, begin=partial(iter, data))
    if callable(data):
        return Records(name=name, begin=data, num_bytes=math.inf)
    raise DataError(
        f"`{name}` is a {type(data).__name__}, which cannot be read twice as rows",
        hint="pass a Dataset, an IterableDataset, a list of rows, or a function that returns an iterator",
    )


def table_records(table: Dataset, *, name: str) -> Records:
    """The rows of a `datasets.Dataset`, in memory or memory-mapped."""
    num_bytes = table.data.nbytes * len(table) / max(1, table.data.num_rows)
    arrow = table.with_format("arrow")
    return Records(name=name, begin=lambda: rows_of(arrow.iter(batch_size=BATCH_ROWS)), num_bytes=num_bytes)


@contextmanager
def _writing_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"rows cannot be written to `{folder}`: {error.strerror or error}",
            hint="set `HF_DATASETS_CACHE` to a folder on a disk with room, or `data.streaming=false`",
        ) from error


class RowsOnDisk(Sequence[Any]):
    """Rows in an unnamed temporary file in the cache folder of `datasets`. Any of them can be read at any time."""

    def __init__(self) -> None:
        import datasets

        folder = Path(datasets.config.HF_DATASETS_CACHE)
        with _writing_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._folder = folder
        self._starts = array("q", [0])

    def append(self, row: Any) -> None:
        """Raises DataError where the disk is full."""
        with _writing_errors(self._folder):
            self._starts.append(self._starts[-1] + self._file.write(pickle.dumps(row)))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        start, end = self._starts[number], self._starts[number + 1]
        self._file.flush()
        return pickle.loads(os.pread(self._file.fileno(), end - start, start))
