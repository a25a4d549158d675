"""Large files in pieces, at any place in bounded memory: row groups of parquet and runs of JSON lines.

The streams of `datasets` decode a whole row group at once, and begin a file of lines at its start.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_compat.data.form.columns import Record
from rl_compat.data.read.files import check_file, object_in, read_records, reading_errors, suffix_of, without_index
from rl_compat.data.read.records import PIECE_BYTES, PIECE_ROWS, Piece, Records, WholeRecords, even_pieces
from rl_compat.errors import DataError

READ_BYTES = 2**20
COMPRESSION_RATIO = 4
"assumed for compressed text"


def open_file(path: Path, *, name: str, piece_rows: int = PIECE_ROWS, piece_bytes: int = PIECE_BYTES) -> Records:
    """A file; its pieces have at most so many rows and about so many bytes. Raises DataError."""
    check_file(path)
    if suffix_of(path) == ".parquet":
        return ParquetRecords(path, name=name, piece_rows=piece_rows, piece_bytes=piece_bytes)
    if suffix_of(path) == ".jsonl":
        return LineRecords(path, name=name, piece_rows=piece_rows, piece_bytes=piece_bytes)
    ratio = COMPRESSION_RATIO if suffix_of(path).count(".") > 1 else 1
    return WholeRecords(name, lambda limit: read_records(path, limit=limit), size=path.stat().st_size * ratio)


class _FileRecords:
    """A file that is read whole or in pieces of limited rows and bytes."""

    reads_pieces = True

    def __init__(self, path: Path, *, name: str, piece_rows: int, piece_bytes: int) -> None:
        self.name = name
        self._path = path
        self._limits = (piece_rows, piece_bytes)

    def read_all(self, limit: int | None = None) -> list[Record]:
        return read_records(self._path, limit=limit)


class ParquetRecords(_FileRecords):
    """A parquet file. A piece is a row group, or a part of a large one."""

    def size_bytes(self) -> float:
        metadata = self._open().metadata
        return float(sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)))

    def pieces(self, *, file: int, first_row: int, limit: int | None) -> list[Piece]:
        metadata = self._open().metadata
        found: list[Piece] = []
        index, end = 0, metadata.num_rows if limit is None else min(limit, metadata.num_rows)
        for group in range(metadata.num_row_groups):
            rows, size = metadata.row_group(group).num_rows, metadata.row_group(group).total_byte_size
            most = self._rows_per_piece(rows, size)
            for piece in even_pieces(min(rows, end - index), most, file=file, first_row=first_row + index):
                num_bytes = size * piece.num_rows // rows
                start = index + piece.index
                found.append(replace(piece, num_bytes=num_bytes, index=start, place=group, skip=piece.index))
            index += rows
        return found

    def read(self, piece: Piece) -> list[Record]:
        """Memory stays near the size of the piece: the rows of the group before it are decoded and dropped."""
        import pyarrow

        skip = piece.skip
        rows: list[Record] = []
        file = self._open()
        group = file.metadata.row_group(piece.place)
        step = self._rows_per_piece(group.num_rows, group.total_byte_size)
        with reading_errors(self.name):
            for batch in file.iter_batches(batch_size=step, row_groups=[piece.place], use_threads=False):
                table = without_index(pyarrow.Table.from_batches([batch]))
                rows += table.slice(min(skip, batch.num_rows), piece.num_rows - len(rows)).to_pylist()
                skip = max(0, skip - batch.num_rows)
                if len(rows) >= piece.num_rows:
                    break
        return rows

    def _rows_per_piece(self, rows: int, size: int) -> int:
        most_rows, most_bytes = self._limits
        return max(1, min(most_rows, rows * most_bytes // max(size, 1)))

    def _open(self) -> Any:
        import pyarrow.parquet

        with reading_errors(self.name):
            return pyarrow.parquet.ParquetFile(self._path, pre_buffer=False, buffer_size=READ_BYTES)


class LineRecords(_FileRecords):
    """A file of JSON lines. A piece is a run of lines, found by one pass that parses nothing."""

    def size_bytes(self) -> float:
        return self._path.stat().st_size

    def pieces(self, *, file: int, first_row: int, limit: int | None) -> list[Piece]:
        found: list[Piece] = []
        index = 0
        for place, num_rows, num_bytes in self._runs():
            num_rows = num_rows if limit is None else min(num_rows, limit - index)
            if num_rows <= 0:
                break
            found.append(
                Piece(
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
        """Where each run begins, the number of its lines that are not blank, and its bytes."""
        most_rows, most_bytes = self._limits
        start = place = count = 0
        with reading_errors(self.name), self._path.open("rb", buffering=READ_BYTES) as file:
            for line in file:
                if count and (count >= most_rows or place - start + len(line) > most_bytes):
                    yield start, count, place - start
                    start, count = place, 0
                count += bool(line.removeprefix(BOM_UTF8 if place == 0 else b"").strip())
                place += len(line)
        if count:
            yield start, count, place - start

    def read(self, piece: Piece) -> list[Record]:
        rows: list[Record] = []
        with reading_errors(self.name), self._path.open("rb") as file:
            file.seek(piece.place)
            while len(rows) < piece.num_rows:
                line = file.readline()
                if not line:
                    raise DataError(f"`{self.name}` became shorter while it was read")
                text = line.decode("utf-8-sig" if piece.place == 0 else "utf-8")
                if text.strip():
                    rows.append(object_in(text, where=f"row {piece.index + len(rows)} of `{self.name}`"))
        return rows
