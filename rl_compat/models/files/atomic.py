"""Write a file or a folder atomically: it appears complete or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def fill_folder(target: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write into an empty folder next to the target, flush it to disk and rename it to the target.

    The target must be absent or empty. If `fill` raises, nothing is left. The remains of a killed process are replaced.
    Who may read the files follows from the umask, also where their writer allows the owner alone.
    """
    partial = target.with_name(f".partial-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        fill(partial)
        for path in partial.rglob("*"):
            if path.is_file():
                path.chmod(partial.stat().st_mode & 0o666)
        flush_tree(partial)
        partial.rename(target)
        flush(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def file_written_whole(path: Path) -> Iterator[Path]:
    """A temporary path next to `path` that replaces it, flushed to disk, when the block ends without an error.

    Who may read the file follows from the umask, also where its writer allows the owner alone.
    """
    partial = path.with_name(f".{path.name}.writing")
    partial.unlink(missing_ok=True)
    try:
        partial.touch()
        mode = partial.stat().st_mode
        yield partial
        partial.chmod(mode)
        flush(partial)
        partial.replace(path)
        flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def flush_tree(folder: Path) -> None:
    """Flush a folder and everything below it to disk."""
    for path in (*sorted(folder.rglob("*")), folder):
        flush(path)


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
