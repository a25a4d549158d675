"""Files read a piece at a time: groups of rows in parquet, runs of lines in JSON lines, and rows already in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rl_compat.data.read.files import Record, check_file, from_line, not_parquet, plain, suffix_of, without_index
from rl_compat.errors import DataError

PIECE_ROWS = 4096
PIECE_BYTES = 2**20
READ_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePiece:
    """Rows that lie together in one file."""

    file: int
    "index of the file in the dataset"
    first_row: int
    "over all files"
    num_rows: int
    num_bytes: int
    "uncompressed"
    index: int
    "of its first row within the file"
    place: int
    "the byte it begins at, or its row group"
    skip: int = 0
    "rows of the row group before it"


class PieceFile(Protocol):
    """A file that can be read in pieces."""

    name: str

    def pieces(self, *, file: int, first_row: int, limit: int | None) -> list[FilePiece]: ...

    def read(self, piece: FilePiece) -> list[Record]: ...


def open_pieces(path: Path, *, piece_rows: int = PIECE_ROWS, piece_bytes: int = PIECE_BYTES) -> PieceFile | None:
    """The file, to be read in pieces of at most so many rows and about so many bytes; None when it must be read whole.

    Raises DataError for a path that is no data file.
    """
    check_file(path)
    if suffix_of(path) == ".parquet":
        return ParquetPieces(path, piece_rows=piece_rows, piece_bytes=piece_bytes)
    if suffix_of(path) == ".jsonl":
        return LinePieces(path, piece_rows=piece_rows, piece_bytes=piece_bytes)
    return None


def uncompressed_bytes(path: Path) -> int:
    """How large the rows of a file are once decompressed, without reading them. Raises DataError."""
    check_file(path)
    if suffix_of(path) != ".parquet":
        return path.stat().st_size * (4 if path.name.lower().endswith(".gz") else 1)
    metadata = _open_parquet(path).metadata
    return sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))


class ParquetPieces:
    """A parquet file: a piece is a row group, or part of one that is large."""

    def __init__(self, path: Path, *, piece_rows: int, piece_bytes: int) -> None:
        self.name = str(path)
        self._path = path
        self._limits = (piece_rows, piece_bytes)

    def pieces(self, *, file: int, first_row: int, limit: int | None) -> list[FilePiece]:
        metadata = _open_parquet(self._path).metadata
        found: list[FilePiece] = []
        index, end = 0, metadata.num_rows if limit is None else min(limit, metadata.num_rows)
        for group in range(metadata.num_row_groups):
            rows, size = metadata.row_group(group).num_rows, metadata.row_group(group).total_byte_size
            for skip, count in _parts(rows, self._rows_per_piece(rows, size)):
                count = min(count, end - index)
                if count <= 0:
                    return found
                found.append(
                    FilePiece(
                        file=file,
                        first_row=first_row + index,
                        num_rows=count,
                        num_bytes=size * count // rows,
                        index=index,
                        place=group,
                        skip=skip,
                    )
                )
                index += count
        return found

    def _rows_per_piece(self, rows: int, size: int) -> int:
        most_rows, most_bytes = self._limits
        return max(1, min(most_rows, rows * most_bytes // max(size, 1)))

    def read(self, piece: FilePiece) -> list[Record]:
        """Memory stays near the size of the piece: the rows of the group before it are decoded and dropped."""
        import pyarrow

        skip = piece.skip
        rows: list[Any] = []
        file = _open_parquet(self._path)
        step = self._rows_per_piece(*_size_of(file, piece.place))
        try:
            for batch in file.iter_batches(batch_size=step, row_groups=[piece.place], use_threads=False):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                table = without_index(pyarrow.Table.from_batches([batch]))
                rows += table.slice(skip, piece.num_rows - len(rows)).to_pylist()
                skip = 0
                if len(rows) >= piece.num_rows:
                    break
        except (OSError, pyarrow.ArrowInvalid) as error:
            raise not_parquet(self._path, error) from error
        return [plain(row) for row in rows]


class LinePieces:
    """A file of JSON lines: a piece is a run of lines, found by one pass over the file that parses nothing."""

    def __init__(self, path: Path, *, piece_rows: int, piece_bytes: int) -> None:
        self.name = str(path)
        self._path = path
        self._limits = (piece_rows, piece_bytes)

    def pieces(self, *, file: int, first_row: int, limit: int | None) -> list[FilePiece]:
        found: list[FilePiece] = []
        index = 0
        for place, num_rows, num_bytes in self._runs():
            num_rows = num_rows if limit is None else min(num_rows, limit - index)
            if num_rows <= 0:
                break
            found.append(
                FilePiece(
                    file=file,
                    first_row=first_row + index,
                    num_rows=num_rows,
                    num_bytes=num_bytes,
                    index=index,
                    place=place,
                )
            )
            index += num_rows
        return found

    def _runs(self) -> Iterator[tuple[int, int, int]]:
        """Where each run begins, how many lines that are not blank it has, and its bytes."""
        most_rows, most_bytes = self._limits
        start = place = count = 0
        try:
            with self._path.open("rb", buffering=READ_BYTES) as file:
                for line in file:
                    if count and (count >= most_rows or place - start + len(line) > most_bytes):
                        yield start, count, place - start
                        start, count = place, 0
                    count += bool(line.strip())
                    place += len(line)
        except OSError as error:
            raise DataError(f"data file `{self._path}` cannot be read: {error}") from error
        if count:
            yield start, count, place - start

    def read(self, piece: FilePiece) -> list[Record]:
        rows: list[Record] = []
        try:
            with self._path.open("rb") as file:
                file.seek(piece.place)
                while len(rows) < piece.num_rows:
                    line = file.readline()
                    if not line:
                        raise DataError(f"`{self._path}` has become shorter while it is read")
                    if line.strip():
                        text = line.decode("utf-8-sig" if piece.place == 0 else "utf-8")
                        rows.append(from_line(text, path=self._path, row=piece.index + len(rows)))
        except UnicodeDecodeError as error:
            raise DataError(f"data file `{self._path}` is not UTF-8 text: {error}") from error
        except OSError as error:
            raise DataError(f"data file `{self._path}` cannot be read: {error}") from error
        return rows


class MemoryPieces:
    """Records that are in memory already."""

    def __init__(self, name: str, records: Sequence[Record]) -> None:
        self.name = name
        self._records = records

    def pieces(self, *, file: int, first_row: int, limit: int | None) -> list[FilePiece]:
        num_rows = len(self._records) if limit is None else min(limit, len(self._records))
        return [
            FilePiece(
                file=file, first_row=first_row + skip, num_rows=count, num_bytes=0, index=skip, place=0, skip=skip
            )
            for skip, count in _parts(num_rows, PIECE_ROWS)
        ]

    def read(self, piece: FilePiece) -> list[Record]:
        return list(self._records[piece.skip : piece.skip + piece.num_rows])


def _parts(total: int, most: int) -> Iterator[tuple[int, int]]:
    """Where each part of `total` things begins, and how many it has."""
    return ((start, min(most, total - start)) for start in range(0, total, most))


def _size_of(file: Any, group: int) -> tuple[int, int]:
    metadata = file.metadata.row_group(group)
    return metadata.num_rows, metadata.total_byte_size


def _open_parquet(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise not_parquet(path, error) from error
