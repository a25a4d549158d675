"""The record of a run's responses on disk: one parquet file per step, complete or absent.

Nothing here imports torch.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Queue

import pyarrow
import pyarrow.parquet

from rl_compat.errors import RLCompatError, write_failure
from rl_compat.models.files.atomic import file_written_whole

FOLDER = "replay"
"in the folder of a run"
DRAWN = b"drawn"
"in the metadata of a file: the groups of earlier steps that its step trained on again"
_NAME = re.compile(r"step_(\d+)\.parquet")


class RecordWriter:
    """Writes the rows of steps in a thread of its own.

    A step waits only while two others are not yet on disk. After a failed write nothing more is written, and the next
    call raises the error.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._queue: Queue[tuple[int, pyarrow.Table] | None] = Queue(maxsize=2)
        self._error: RLCompatError | None = None
        self._thread = threading.Thread(target=self._work, name="record of responses", daemon=True)
        "starts with the first write"

    def write(self, step: int, *tables: pyarrow.Table, drawn: Sequence[int] = ()) -> None:
        """Write the rows of a step soon; `drawn` are the groups that it trained on again. Raises RLCompatError."""
        self._raise()
        if not self._thread.is_alive():
            self._thread.start()
        metadata = {DRAWN: json.dumps([int(group) for group in drawn]).encode()}
        rows = pyarrow.concat_tables(tables, promote_options="default")
        self._queue.put((step, rows.replace_schema_metadata(metadata)))

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
            path = self.folder / f"step_{step:08}.parquet"
            try:
                if self._error is None:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    with file_written_whole(path) as aside:
                        pyarrow.parquet.write_table(table, aside, compression="zstd")
            except (OSError, pyarrow.ArrowException) as error:
                cause, remedy = write_failure(error)
                self._error = RLCompatError(f"`{path}` could not be written: {cause}", hint=remedy)
            finally:
                self._queue.task_done()


def parts(folder: Path) -> list[tuple[int, Path]]:
    """The steps of a record and their files, in order."""
    named = ((_NAME.fullmatch(path.name), path) for path in folder.glob("step_*.parquet"))
    return sorted((int(match.group(1)), path) for match, path in named if match)


def read_parts(folder: Path, columns: list[str] | None = None) -> Iterator[tuple[int, pyarrow.Table]]:
    """The steps of a record and their rows. Raises RLCompatError for a file that is not what was written."""
    for step, path in parts(folder):
        try:
            yield step, pyarrow.parquet.read_table(path, columns=columns, partitioning=None)
        except (OSError, pyarrow.ArrowException) as error:
            raise RLCompatError(
                f"`{path}` cannot be read: {error}", hint="remove it to read the other steps"
            ) from error


def drawn_groups(table: pyarrow.Table) -> list[int]:
    """The groups of earlier steps that the step of these rows trained on again."""
    found: list[int] = json.loads((table.schema.metadata or {}).get(DRAWN, b"[]"))
    return found


def forget_steps_after(step: int, folder: Path) -> None:
    """Remove the files of later steps, which a resumed run writes again, and the remains of a killed process."""
    for path in [*(path for number, path in parts(folder) if number > step), *folder.glob(".step_*")]:
        path.unlink()
