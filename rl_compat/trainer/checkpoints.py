"""Checkpoints as folders that are complete or do not count.

A checkpoint is written beside its final place, every file synced, a manifest with sizes and SHA-256 sums written
last, and the folder then renamed. A crash at any moment leaves either the whole checkpoint or none.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rl_compat.errors import CheckpointError, DoesNotFitError
from rl_compat.units import format_bytes

MANIFEST = "manifest.json"
_NAME = re.compile(r"step_(\d+)")
_ASIDE = ".writing-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The newest usable checkpoint and why newer folders were passed over."""

    path: Path | None
    step: int
    skipped: tuple[str, ...] = ()


def write_checkpoint(root: Path, step: int, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a folder and make it `root/step_N`; an existing complete one is replaced only at the end.

    Raises CheckpointError when it cannot be written; earlier checkpoints are then untouched.
    """
    root.mkdir(parents=True, exist_ok=True)
    remove_leftovers(root)
    aside = root / f"{_ASIDE}step_{step}"
    aside.mkdir()
    final = root / f"step_{step}"
    try:
        write(aside)
        _seal(aside, step)
        if final.exists():
            shutil.rmtree(final)
        aside.rename(final)
        _sync_folder(root)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise _cannot_write(final, error) from error
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return final


def _cannot_write(final: Path, error: OSError) -> CheckpointError:
    free = shutil.disk_usage(final.parent).free
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        reason = f"the disk is full ({format_bytes(free)} free)"
    else:
        reason = error.strerror or str(error)
    return CheckpointError(
        f"checkpoint `{final}` could not be written: {reason}",
        hint="earlier checkpoints are untouched; free some space and start again to resume",
    )


def _seal(folder: Path, step: int) -> None:
    """Sync every file, then write the manifest that makes the folder a checkpoint."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": _digest(path)}
            _sync_file(path)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"schema": 1, "step": step, "files": files}, indent=1))
    _sync_file(manifest)
    for path in [folder, *(p for p in folder.rglob("*") if p.is_dir())]:
        _sync_folder(path)


def problems(folder: Path, *, checksums: bool) -> list[str]:
    """Why a folder is not a complete checkpoint; empty when it is. Checksums read every byte."""
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
    except FileNotFoundError:
        return [f"`{MANIFEST}` is missing"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        return [f"`{MANIFEST}` cannot be read: {error}"]
    found = []
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            found.append(f"`{name}` is missing")
        elif path.stat().st_size != expected["bytes"]:
            found.append(f"`{name}` has {path.stat().st_size} bytes, expected {expected['bytes']}")
        elif checksums and _digest(path) != expected["sha256"]:
            found.append(f"`{name}` does not match its checksum")
    return found


def find_newest(root: Path) -> Found:
    """The complete checkpoint with the highest step; newer incomplete folders are left alone and named."""
    skipped: list[str] = []
    for step, folder in sorted(_steps(root), reverse=True):
        reasons = problems(folder, checksums=True)
        if not reasons:
            return Found(path=folder, step=step, skipped=tuple(skipped))
        skipped.append(f"`{folder.name}` is not complete: {reasons[0]}")
    return Found(path=None, step=0, skipped=tuple(skipped))


def open_checkpoint(folder: Path) -> Found:
    """A checkpoint asked for by name. Raises CheckpointError with what is missing."""
    reasons = problems(folder, checksums=True) if folder.is_dir() else ["the folder does not exist"]
    if reasons:
        raise CheckpointError(
            f"`{folder}` is not a usable checkpoint: {reasons[0]}",
            hint="`trainer.resume=auto` takes the newest complete one of `trainer.output_dir`",
        )
    return Found(path=folder, step=int(json.loads((folder / MANIFEST).read_text())["step"]))


def prune(root: Path, keep: int) -> list[Path]:
    """Remove all complete checkpoints but the newest `keep`; incomplete folders are left alone."""
    complete = [folder for _, folder in sorted(_steps(root)) if not problems(folder, checksums=False)]
    old = complete[: max(0, len(complete) - max(1, keep))]
    for folder in old:
        # the manifest goes first, so that a crash half way leaves no folder that looks complete
        (folder / MANIFEST).unlink()
        shutil.rmtree(folder)
    return old


def remove_leftovers(root: Path) -> None:
    """Remove what a crash left half written."""
    for folder in root.glob(f"{_ASIDE}*"):
        shutil.rmtree(folder, ignore_errors=True)


def check_disk(root: Path, checkpoint_bytes: int, keep: int) -> None:
    """Raise DoesNotFitError unless the kept checkpoints and the one being written fit beside what is there."""
    existing = root
    while not existing.exists():
        existing = existing.parent
    needed = checkpoint_bytes * (keep + 1)
    present = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) if root.exists() else 0
    free = shutil.disk_usage(existing).free + present
    if needed > free:
        raise DoesNotFitError(
            f"{keep} checkpoints and one being written need {format_bytes(needed)} in `{root}`"
            f" and the disk has {format_bytes(free)}",
            hint="lower `trainer.keep_checkpoints`, set `model.lora_rank`, or move `trainer.output_dir`",
        )


def _steps(root: Path) -> Iterator[tuple[int, Path]]:
    for folder in root.glob("step_*"):
        match = _NAME.fullmatch(folder.name)
        if match and folder.is_dir():
            yield int(match.group(1)), folder


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def file_written_whole(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that replaces it, synced, when the block ends well."""
    aside = path.with_name(f".{path.name}.writing")
    try:
        yield aside
        _sync_file(aside)
        aside.replace(path)
        _sync_folder(path.parent)
    finally:
        aside.unlink(missing_ok=True)
