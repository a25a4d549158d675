"""Write a folder atomically: it appears complete or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def fill_folder(target: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write into an empty folder next to the target, flush it to disk and rename it to the target.

    The target must be absent or empty. If `fill` raises, nothing is left. The remains of a killed process are replaced.
    """
    partial = target.with_name(f".partial-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        fill(partial)
        for path in (*sorted(partial.rglob("*")), partial):
            _flush(path)
        partial.rename(target)
        _flush(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def no_space_left(error: Exception) -> bool:
    """Whether a full disk caused the error. safetensors reports it only in the text of its error."""
    return getattr(error, "errno", None) == errno.ENOSPC or f"os error {errno.ENOSPC}" in str(error)
