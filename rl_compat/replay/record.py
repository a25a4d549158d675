"""The record of a run's responses on disk: parquet files, each complete or absent. It is the third level of the buffer.

A step is written as a file of its own, `step_N.parquet`. `RecordLimits` says how many of them become one file,
`steps_FIRST_LAST.parquet`, and how much disk space the record takes. Nothing here imports torch.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import pyarrow
import pyarrow.parquet

from rl_compat.errors import RLCompatError, write_failure
from rl_compat.models.files.atomic import file_written_whole

FOLDER = "replay"
"in the folder of a run"
DRAWN = b"drawn"
"in the metadata of a table: the groups of earlier steps that its step trained on again; of a file: those by step"
_NAME = re.compile(r"steps?_(\d+)(?:_(\d+))?\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLimits:
    """When files of a record are merged, and when the oldest ones are removed."""

    merged_steps: int = 64
    "files of single steps that become one"
    max_bytes: int | None = None
    "of all files together; the oldest are removed beyond it, and none while it is None"

    @property
    def max_merged_bytes(self) -> float:
        """Size of the files that are merged: an eighth of the limit, so that little more than too much is removed."""
        return float("inf") if self.max_bytes is None else self.max_bytes / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFile:
    """A file of a record, and its steps."""

    first: int
    last: int
    path: Path


class FileGoneError(RLCompatError):
    """A file of a record that a run has merged or removed meanwhile."""


class RecordWriter:
    """Writes the rows of steps in a thread of its own.

    A step waits only while two others are not yet on disk. After a failed write nothing more is written, and the next
    call raises the error.
    """

    def __init__(self, folder: Path, limits: RecordLimits = RecordLimits()) -> None:
        self.folder = folder
        self.limits = limits
        self._queue: Queue[tuple[int, pyarrow.Table] | None] = Queue(maxsize=2)
        self._error: RLCompatError | None = None
        self._thread = threading.Thread(target=self._work, name="record of responses", daemon=True)
        "starts with the first write"

    def write(self, step: int, *tables: pyarrow.Table, drawn: Sequence[int] = ()) -> None:
        """Write the rows of a step soon; `drawn` are the groups that it trained on again. Raises RLCompatError."""
        self._raise()
        if not self._thread.is_alive():
            self._thread.start()
        self._queue.put((step, _with_drawn(pyarrow.concat_tables(tables, promote_options="default"), drawn)))

    def flush(self) -> None:
        """Wait until everything is on disk. Raises RLCompatError."""
        self._queue.join()
        self._raise()

    def close(self) -> None:
        """Write what is left and end the thread."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            step, table = item
            try:
                if self._error is None:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    write_steps(self.folder / _name(step, step), [item], table.schema)
                    apply_limits(self.folder, self.limits)
            except (OSError, pyarrow.ArrowException) as error:
                cause, remedy = write_failure(error)
                self._error = RLCompatError(
                    f"step {step} could not be written to `{self.folder}`: {cause}", hint=remedy
                )
            except RLCompatError as error:
                self._error = error
            finally:
                self._queue.task_done()


def record_files(folder: Path) -> list[RecordFile]:
    """The files of a record in the order of their steps. Those that another one replaces are left out."""
    named = ((_NAME.fullmatch(path.name), path) for path in folder.glob("step*_*.parquet"))
    every = [
        RecordFile(first=int(match.group(1)), last=int(match.group(2) or match.group(1)), path=path)
        for match, path in named
        if match
    ]
    found: list[RecordFile] = []
    for file in sorted(every, key=lambda file: (file.first, -file.last)):
        if not found or file.last > found[-1].last:
            found.append(file)
    return found


def steps_of(file: RecordFile) -> list[int]:
    """The steps of a file. Raises RLCompatError for one that is not what was written."""
    if file.first == file.last:
        return [file.first]
    with _opened(file.path) as opened:
        return list(_drawn_by_step(opened))


def file_versions(file: RecordFile) -> list[int]:
    """The smallest and the largest policy version of each step, from the statistics of the file."""
    found = []
    with _opened(file.path) as opened:
        groups = [opened.metadata.row_group(number) for number in range(opened.num_row_groups)]
        for column in (group.column(place) for group in groups for place in range(group.num_columns)):
            statistics = column.statistics
            if column.path_in_schema.startswith("policy_versions.") and statistics and statistics.has_min_max:
                found += [statistics.min, statistics.max]
    return found


def schema_of(files: Iterable[RecordFile]) -> pyarrow.Schema:
    """The columns of all files. Raises RLCompatError for one that is not what was written."""
    schemas = []
    for file in files:
        with _opened(file.path) as opened:
            schemas.append(opened.schema_arrow.remove_metadata())
    return pyarrow.unify_schemas(schemas, promote_options="permissive")


def read_steps(
    folder: Path, columns: list[str] | None = None, *, steps: tuple[int, float] = (0, float("inf"))
) -> Iterator[tuple[int, pyarrow.Table]]:
    """The steps of a record from the first to the last given, with their rows.

    The run may go on meanwhile. Raises RLCompatError for a file that is not what was written.
    """
    start, last = steps
    while files := [file for file in record_files(folder) if start <= file.last and file.first <= last]:
        file = files[0]
        try:
            with _opened(file.path) as opened:
                for place, (step, drawn) in enumerate(_drawn_by_step(opened).items()):
                    if start <= step <= last:
                        yield step, _with_drawn(opened.read_row_group(place, columns=columns), drawn)
        except FileGoneError:
            continue
        else:
            start = file.last + 1


def drawn_groups(table: pyarrow.Table) -> list[int]:
    """The groups of earlier steps that the step of these rows trained on again."""
    found: list[int] = json.loads((table.schema.metadata or {}).get(DRAWN, b"[]"))
    return found


def write_steps(path: Path, tables: Iterable[tuple[int, pyarrow.Table]], schema: pyarrow.Schema) -> int:
    """Write steps with the columns of `schema` as one file, a row group each; returns the number of rows."""
    empty, drawn, count = schema.remove_metadata().empty_table(), dict[int, list[int]](), 0
    with (
        file_written_whole(path) as aside,
        pyarrow.parquet.ParquetWriter(aside, empty.schema, compression="zstd") as to,
    ):
        for step, table in tables:
            drawn[step] = drawn_groups(table)
            rows = pyarrow.concat_tables([empty, table], promote_options="permissive").select(empty.column_names)
            to.write_table(rows, row_group_size=max(1, len(rows)))
            count += len(rows)
        to.add_key_value_metadata({DRAWN: json.dumps(drawn)})
    return count


def apply_limits(folder: Path, limits: RecordLimits) -> None:
    """Merge the oldest files of single steps once they are enough, then remove the oldest files beyond the limit.

    A file that is merged goes after the one that has its rows is complete.
    """
    single = [file for file in record_files(folder) if file.first == file.last][: limits.merged_steps]
    if len(single) == limits.merged_steps and _size(single) <= limits.max_merged_bytes:
        tables = read_steps(folder, steps=(single[0].first, single[-1].last))
        write_steps(folder / _name(single[0].first, single[-1].last), tables, schema_of(single))
        for file in single:
            file.path.unlink()
    files = record_files(folder)
    while limits.max_bytes is not None and len(files) > 1 and _size(files) > limits.max_bytes:
        files.pop(0).path.unlink()


def forget_steps_after(step: int, folder: Path) -> None:
    """Remove later steps, which a resumed run writes again, and the remains of a killed process."""
    files = record_files(folder)
    kept = {file.path for file in files}
    for path in [*folder.glob("step*_*.parquet"), *folder.glob(".step*_*")]:
        if path not in kept:  # first, since a file that another one replaces counts again without that one
            path.unlink()
    for file in files:
        if file.first <= step < file.last:
            tables = read_steps(folder, steps=(file.first, step))
            write_steps(folder / _name(file.first, step), tables, schema_of([file]))
        if step < file.last:
            file.path.unlink()


def _name(first: int, last: int) -> str:
    return f"step_{first:08}.parquet" if first == last else f"steps_{first:08}_{last:08}.parquet"


def _size(files: Iterable[RecordFile]) -> int:
    return sum(file.path.stat().st_size for file in files)


def _with_drawn(table: pyarrow.Table, drawn: Sequence[int]) -> pyarrow.Table:
    return table.replace_schema_metadata({DRAWN: json.dumps([int(group) for group in drawn]).encode()})


def _drawn_by_step(file: pyarrow.parquet.ParquetFile) -> dict[int, list[int]]:
    """The steps of a file in the order of its row groups, with the groups that each drew."""
    by_step = json.loads((file.metadata.metadata or {}).get(DRAWN, b"null"))
    if not isinstance(by_step, dict) or len(by_step) != file.num_row_groups:
        raise ValueError("it is not a file of a record")
    return {int(step): drawn for step, drawn in by_step.items()}


@contextmanager
def _opened(path: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    """A file of a record. Raises FileGoneError, and RLCompatError for a file that is not what was written."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except FileNotFoundError as error:
        raise FileGoneError(f"`{path}` is not there any more", hint="run the command again") from error
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise RLCompatError(f"`{path}` cannot be read: {error}", hint="remove it to read the other steps") from error
