"""Atomic checkpoints: a folder is either complete or ignored.

A checkpoint is written to a temporary folder and every file is flushed. A manifest with sizes and SHA-256 sums is
written last, and the folder is then renamed. A crash at any moment leaves either the whole checkpoint or none.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from rl_compat.config.types import TrainerConfig
from rl_compat.errors import (
    WRITE_FAILURES,
    CheckpointError,
    ConfigError,
    DoesNotFitError,
    error_number,
    quoted,
    write_failure,
)
from rl_compat.models.files.atomic import flush, flush_tree
from rl_compat.models.files.sources import file_sha256
from rl_compat.replay.record import FOLDER
from rl_compat.training.checked_files import read_sums
from rl_compat.units import MIB, format_bytes

CHECKPOINTS = "checkpoints"
MANIFEST = "manifest.json"
DAMAGED_MANIFEST = "manifest.damaged.json"
WHEN_READ = "when read"
"in the manifest: the file's reader verifies its checksum"
_NAME = re.compile(r"step_(\d+)")
_ASIDE = ".writing-"
_OLD = ".old-"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """The newest usable checkpoint, and why newer folders were skipped."""

    path: Path | None
    step: int
    skipped: tuple[str, ...] = ()


def write_checkpoint(root: Path, step: int, write: Callable[[Path], None]) -> Path:
    """Call `write` on a temporary folder, then rename it to `root/step_N`, replacing an existing one.

    Raises CheckpointError if it cannot be written; earlier checkpoints then remain untouched.
    """
    root.mkdir(parents=True, exist_ok=True)
    remove_leftovers(root)
    aside, final = root / f"{_ASIDE}step_{step}", root / f"step_{step}"
    try:
        aside.mkdir()
        write(aside)
        _seal(aside, step)
        _put_in_place(aside, final)
    except (OSError, RuntimeError, SafetensorError) as error:  # the last two: how torch and safetensors fail to write
        failure = _cannot_write(final, error, written=_size_of(aside))
        shutil.rmtree(aside, ignore_errors=True)
        raise failure from error
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return final


def _put_in_place(aside: Path, final: Path) -> None:
    """Rename; an existing folder of that name is kept under another name until the rename succeeds."""
    old = final.with_name(f"{_OLD}{final.name}")
    if final.exists():
        final.rename(old)
    aside.rename(final)
    flush(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _cannot_write(final: Path, error: Exception, *, written: int) -> CheckpointError:
    cause, remedy = write_failure(error)
    free = shutil.disk_usage(final.parent).free
    if error_number(error) is None and free < MIB:  # torch gives no number
        cause, remedy = WRITE_FAILURES[errno.ENOSPC]
    sizes = ""
    if cause == WRITE_FAILURES[errno.ENOSPC][0]:
        sizes = f" ({format_bytes(written)} were written, {format_bytes(free)} are free)"
    failure = CheckpointError(
        f"checkpoint `{final}` could not be written: {cause}{sizes}",
        hint="; ".join(filter(None, [remedy, "earlier checkpoints are untouched, and the same command continues"])),
    )
    for note in getattr(error, "__notes__", []):  # the rank that failed
        failure.add_note(note)
    return failure


def _seal(folder: Path, step: int) -> None:
    """Flush every file, then write the manifest that makes the folder a checkpoint."""
    files = {}
    for inside in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        hashed = {name: sums | {"verified": WHEN_READ} for name, sums in read_sums(inside).items()}
        for path in inside.iterdir():
            if path.is_file():
                name = path.relative_to(folder).as_posix()
                files[name] = hashed.get(path.name) or {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    flush_tree(folder)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"schema": 1, "step": step, "files": dict(sorted(files.items()))}, indent=1))
    flush(manifest)
    flush(folder)


def problems(folder: Path, *, checksums: bool) -> list[str]:
    """Why a folder is not a complete checkpoint; empty if it is.

    `checksums` verifies those files that are not verified when they are read.
    """
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
        elif checksums and expected.get("verified") != WHEN_READ and file_sha256(path) != expected["sha256"]:
            found.append(f"`{name}` does not match its checksum")
    return found


def find_newest(root: Path, *, before: float = math.inf) -> FoundCheckpoint:
    """The complete checkpoint with the highest step below `before`. Newer incomplete folders are kept and named.

    A file may still turn out to be damaged when it is read. Nothing is changed: a checkpoint whose replacement a crash
    interrupted is found under the name that it has meanwhile.
    """
    skipped: list[str] = []
    for step, folder in sorted(((step, folder) for step, folder in _steps(root) if step < before), reverse=True):
        reasons = problems(folder, checksums=True)
        if not reasons:
            return FoundCheckpoint(path=folder, step=step, skipped=tuple(skipped))
        if not folder.is_dir():  # a run that trains has removed it
            return find_newest(root, before=before)
        skipped.append(f"`{folder.name}` is not complete: {reasons[0]}")
    return FoundCheckpoint(path=None, step=0, skipped=tuple(skipped))


def open_checkpoint(folder: Path) -> FoundCheckpoint:
    """A checkpoint given by its path. Raises ConfigError if there is none, CheckpointError for an incomplete one."""
    if not folder.is_dir():
        others = [name.name for _, name in sorted(_steps(folder.parent))]
        hint = f"`{folder.parent}` has {quoted(others)}" if others else "give a folder `step_N` of a run's checkpoints"
        raise ConfigError(f"there is no checkpoint `{folder}`", hint=hint)
    reasons = problems(folder, checksums=True)
    if reasons:
        raise CheckpointError(
            f"`{folder}` is not a usable checkpoint: {reasons[0]}",
            hint="`trainer.resume=auto` takes the newest complete one of `trainer.output_dir`",
        )
    return FoundCheckpoint(path=folder, step=int(json.loads((folder / MANIFEST).read_text())["step"]))


@contextmanager
def held(choose: Callable[[], FoundCheckpoint]) -> Iterator[FoundCheckpoint]:
    """The checkpoint that `choose` finds. A run that trains does not remove it during the block."""
    while True:
        found = choose()
        assert found.path is not None
        with _locked(found.path, fcntl.LOCK_SH):
            if (found.path / MANIFEST).exists():
                yield found
                return


@contextmanager
def _locked(folder: Path, operation: int) -> Iterator[bool]:
    """Whether the lock is obtained, held during the block; a file system without locks gives it to everyone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(descriptor, operation)
        obtained = True
    except OSError as error:
        obtained = error.errno != errno.EWOULDBLOCK
    try:
        yield obtained
    finally:
        os.close(descriptor)


def set_aside(folder: Path) -> None:
    """Mark a checkpoint with a damaged file as incomplete, so that it is neither resumed from nor pruned."""
    (folder / MANIFEST).rename(folder / DAMAGED_MANIFEST)


def prune(root: Path, keep: int) -> list[Path]:
    """Remove all complete checkpoints except the newest `keep` and those that are being read; the removed ones.

    Incomplete folders are kept.
    """
    complete = [folder for _, folder in sorted(_steps(root)) if not problems(folder, checksums=False)]
    removed = []
    for folder in complete[: max(0, len(complete) - max(1, keep))]:
        aside = folder.with_name(f"{_ASIDE}{folder.name}")  # a crash then leaves a leftover
        with _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_free:
            if is_free:
                folder.rename(aside)
        if is_free:
            shutil.rmtree(aside)
            removed.append(folder)
    return removed


def remove_leftovers(root: Path) -> None:
    """Remove partly written and partly removed folders that a crash left behind."""
    for _, folder in list(_steps(root)):
        folder.rename(folder.with_name(folder.name.removeprefix(_OLD)))
    for folder in [*root.glob(f"{_ASIDE}*"), *root.glob(f"{_OLD}*")]:
        shutil.rmtree(folder, ignore_errors=True)


def most_at_once(root: Path, *, total_steps: int, save_every: int, keep: int) -> int:
    """The maximum number of checkpoints in `root` during a run of `total_steps`, including the one being written."""
    existing = [step for step, _ in _steps(root)]
    first = max(existing, default=0)
    every = save_every or total_steps
    coming = total_steps // every - first // every + (total_steps % every != 0) if first < total_steps else 0
    return min(keep + 1, len(existing) + coming)


def check_disk(trainer: TrainerConfig, checkpoint_bytes: int, *, total_steps: int, record_bytes: int = 0) -> None:
    """Check that the disk has space for all checkpoints that the run keeps, and for the record of its responses.

    Existing checkpoints and an existing record count as free space. `record_bytes` is the most that the record takes.
    Raises DoesNotFitError, and ConfigError for a folder that cannot be created.
    """
    root = existing = Path(trainer.output_dir) / CHECKPOINTS
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        why = "is not writable" if existing.is_dir() else "is a file"
        raise ConfigError(f"`{root}` cannot be created: `{existing}` {why}", hint="set `trainer.output_dir`")
    count = most_at_once(root, total_steps=total_steps, save_every=trainer.save_every, keep=trainer.keep_checkpoints)
    needed = checkpoint_bytes * count + record_bytes
    free = shutil.disk_usage(existing).free + _size_of(root) + _size_of(root.with_name(FOLDER))
    if needed > free:
        record = f" and up to {format_bytes(record_bytes)} of responses" if record_bytes else ""
        raise DoesNotFitError(
            f"{count} checkpoint{'s' if count > 1 else ''} of {format_bytes(checkpoint_bytes)} at once{record} need "
            f"{format_bytes(needed)} in `{root.parent}` and the disk has {format_bytes(free)}",
            hint=("set `samples.keep_gib`, " if record else "")
            + "lower `trainer.keep_checkpoints`, set `model.lora_rank`, or move `trainer.output_dir`",
        )


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _steps(root: Path) -> Iterator[tuple[int, Path]]:
    """Checkpoints by step, among them those whose replacement a crash interrupted between two renames."""
    for folder in root.glob("*step_*"):
        name = folder.name.removeprefix(_OLD)
        match = _NAME.fullmatch(name)
        if match and folder.is_dir() and (folder.name == name or not folder.with_name(name).exists()):
            yield int(match.group(1)), folder
