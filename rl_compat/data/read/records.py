"""What records are read from, whole or a piece at a time: tables and streams of `datasets`, and Python objects."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from rl_compat.data.form.columns import Record, plain
from rl_compat.data.read.files import reading_errors
from rl_compat.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

PIECE_ROWS = 4096
PIECE_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows that are next to each other in one source and are read together."""

    file: int
    "index of the source in the dataset"
    first_row: int
    "over all sources"
    num_rows: int
    num_bytes: int
    "uncompressed"
    index: int
    "of its first row within the source"
    place: int = 0
    "the byte where it begins, or its row group"
    skip: int = 0
    "rows of the row group before it"
    follows: bool = False
    "in a stream, which is only read in its order: the piece comes after the one before it"


class Records(Protocol):
    """A source of records under a name."""

    name: str
    reads_pieces: bool
    "False where `pieces` loads all records into memory"

    def size_bytes(self) -> float:
        """Uncompressed, without reading the records; infinite for a stream."""
        ...

    def read_all(self, limit: int | None = None) -> list[Record]:
        """The records, at most `limit`. Raises DataError."""
        ...

    def pieces(self, *, file: int, first_row: int, limit: int | None) -> list[Piece]:
        """The source cut into pieces, as number `file` of a dataset, with its first row at `first_row`."""
        ...

    def read(self, piece: Piece) -> list[Record]:
        """The records of one piece. Raises DataError."""
        ...


def as_source(
    data: str | Dataset | IterableDataset | Sequence[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]],
    *,
    name: str = "data",
) -> str | Records:
    """Data from Python as a source, usable in place of a name in `data.train_files`.

    A name, a `datasets.Dataset`, a `datasets.IterableDataset`, rows in a list, or a function that returns an iterator
    over rows: it is called for every pass and must give the same rows in the same order each time. `name` appears in
    messages. Raises DataError for anything else.
    """
    import datasets

    if isinstance(data, str):
        return data
    if isinstance(data, datasets.Dataset):
        return TableRecords(name, data)
    if isinstance(data, datasets.IterableDataset):
        return StreamRecords(name, lambda: iter(data))
    if isinstance(data, dict):
        splits = ", ".join(f'`["{key}"]`' for key in data)
        raise DataError(f"`{name}` is a {type(data).__name__}, not rows", hint=f"pass one of its values: {splits}")
    if isinstance(data, Sequence):
        rows: Sequence[Any] = data
        return WholeRecords(name, lambda limit: list(_records(islice(rows, limit), name)))
    if callable(data):
        return StreamRecords(name, data)
    raise DataError(
        f"`{name}` is a {type(data).__name__}, which cannot be read twice as rows",
        hint="pass a Dataset, an IterableDataset, a list of rows, or a function that returns an iterator",
    )


class WholeRecords:
    """Records that are only read all at once, from a function of the largest number of rows."""

    reads_pieces = False

    def __init__(self, name: str, read_all: Callable[[int | None], list[Record]], *, size: int = 0) -> None:
        self.name = name
        self._read_all = read_all
        self._size = size
        self._held: list[Record] = []

    def size_bytes(self) -> float:
        return self._size

    def read_all(self, limit: int | None = None) -> list[Record]:
        return self._read_all(limit)

    def pieces(self, *, file: int, first_row: int, limit: int | None) -> list[Piece]:
        self._held = self._read_all(limit)
        return even_pieces(len(self._held), PIECE_ROWS, file=file, first_row=first_row)

    def read(self, piece: Piece) -> list[Record]:
        return self._held[piece.index : piece.index + piece.num_rows]


class TableRecords:
    """A `datasets.Dataset`: any row at any time, from memory or from memory-mapped Arrow files."""

    reads_pieces = True

    def __init__(self, name: str, table: Dataset) -> None:
        self.name = name
        self._table = table.with_format(None)

    def size_bytes(self) -> float:
        data = self._table.data
        return float(data.nbytes * len(self._table) / max(1, data.num_rows))

    def read_all(self, limit: int | None = None) -> list[Record]:
        num_rows = len(self._table) if limit is None else min(limit, len(self._table))
        return [row for start in range(0, num_rows, PIECE_ROWS) for row in self._rows(start, num_rows)]

    def pieces(self, *, file: int, first_row: int, limit: int | None) -> list[Piece]:
        num_rows, size = len(self._table), int(self.size_bytes())
        most = max(1, min(PIECE_ROWS, num_rows * PIECE_BYTES // max(size, 1)))
        wanted = num_rows if limit is None else min(limit, num_rows)
        return even_pieces(wanted, most, file=file, first_row=first_row, row_bytes=size // max(1, num_rows))

    def read(self, piece: Piece) -> list[Record]:
        return self._rows(piece.index, piece.index + piece.num_rows)

    def _rows(self, start: int, end: int) -> list[Record]:
        with reading_errors(self.name):
            columns = self._table[start : min(end, start + PIECE_ROWS)]
        return [plain(dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]


class StreamRecords:
    """Records in one order, from a function that begins a pass over them. One pass counts them."""

    reads_pieces = True

    def __init__(self, name: str, begin: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        self.name = name
        self._begin = begin
        self._rows: Iterator[Record] = iter(())
        self._position = math.inf

    def size_bytes(self) -> float:
        return math.inf

    def read_all(self, limit: int | None = None) -> list[Record]:
        with reading_errors(self.name):
            return list(_records(islice(self._begin(), limit), self.name))

    def pieces(self, *, file: int, first_row: int, limit: int | None) -> list[Piece]:
        cut = partial(Piece, file=file, follows=True)
        found: list[Piece] = []
        index = count = size = 0
        with reading_errors(self.name):
            for record in _records(islice(self._begin(), limit), self.name):
                count, size = count + 1, size + len(str(record))
                if count >= PIECE_ROWS or size >= PIECE_BYTES:
                    found.append(cut(first_row=first_row + index, num_rows=count, num_bytes=size, index=index))
                    index, count, size = index + count, 0, 0
        if count:
            found.append(cut(first_row=first_row + index, num_rows=count, num_bytes=size, index=index))
        return found

    def read(self, piece: Piece) -> list[Record]:
        """Continues the pass, or begins another one where the piece is behind it."""
        with reading_errors(self.name):
            if piece.index < self._position:
                self._rows, self._position = _records(self._begin(), self.name), 0
            skipped, self._position = int(piece.index - self._position), piece.index + piece.num_rows
            rows = list(islice(self._rows, skipped, skipped + piece.num_rows))
        if len(rows) < piece.num_rows:
            raise DataError(
                f"`{self.name}` ended before row {piece.index + piece.num_rows - 1}, which an earlier pass had",
                hint="every pass must give the same rows",
            )
        return rows


def even_pieces(num_rows: int, most: int, *, file: int, first_row: int, row_bytes: int = 0) -> list[Piece]:
    """Rows in pieces of `most`, the last one smaller."""
    return [
        Piece(
            file=file,
            first_row=first_row + start,
            num_rows=min(most, num_rows - start),
            num_bytes=row_bytes * min(most, num_rows - start),
            index=start,
        )
        for start in range(0, num_rows, most)
    ]


def _records(rows: Iterable[Mapping[str, Any]], name: str) -> Iterator[Record]:
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"row {index} of `{name}` is a {type(row).__name__}, not a mapping from column to value")
        yield plain(row)
