"""Checkpoints are complete or do not count."""

from __future__ import annotations

import errno
import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.facts import facts
from safetensors import SafetensorError

from rl_compat.config.types import TrainerConfig
from rl_compat.errors import WRITE_FAILURES, CheckpointError, ConfigError, DoesNotFitError
from rl_compat.trainer.checkpoints import (
    FoundCheckpoint,
    check_disk,
    find_newest,
    held,
    most_at_once,
    open_checkpoint,
    problems,
    prune,
    write_checkpoint,
)


def filled(content: bytes = b"weights"):
    def write(folder: Path) -> None:
        (folder / "actor").mkdir()
        (folder / "actor" / "model.safetensors").write_bytes(content)
        (folder / "actor" / "optimizer.pt").write_bytes(b"moments")

    return write


def test_a_written_checkpoint_is_the_newest(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1, filled())
    path = write_checkpoint(tmp_path, 2, filled())
    found = find_newest(tmp_path)
    assert (found.path, found.step, found.skipped) == (path, 2, ())


def test_a_newer_folder_without_a_file_is_skipped_named_and_kept(tmp_path: Path) -> None:
    """A-CKPT-01"""
    write_checkpoint(tmp_path, 10, filled())
    broken = write_checkpoint(tmp_path, 20, filled())
    (broken / "actor" / "optimizer.pt").unlink()
    found = find_newest(tmp_path)
    assert found.step == 10
    assert "step_20" in found.skipped[0]
    assert "optimizer.pt" in found.skipped[0]
    assert broken.exists()
    with pytest.raises(CheckpointError, match=r"optimizer\.pt"):
        open_checkpoint(broken)
    with pytest.raises(ConfigError) as error:
        open_checkpoint(tmp_path / "step_9")
    assert facts(error.value.message) == {str(tmp_path / "step_9")}
    assert {"step_10", "step_20"} <= facts(error.value.hint)


@pytest.mark.parametrize("damage", ["truncated", "changed", "no manifest", "manifest cut"])
def test_a_damaged_checkpoint_is_not_used(tmp_path: Path, damage: str) -> None:
    write_checkpoint(tmp_path, 1, filled())
    newest = write_checkpoint(tmp_path, 2, filled())
    model = newest / "actor" / "model.safetensors"
    if damage == "truncated":
        model.write_bytes(b"weigh")
    elif damage == "changed":
        model.write_bytes(b"wEights")
    elif damage == "no manifest":
        (newest / "manifest.json").unlink()
    else:
        text = (newest / "manifest.json").read_text()
        (newest / "manifest.json").write_text(text[: len(text) // 2])
    assert find_newest(tmp_path).step == 1


def test_pruning_keeps_exactly_the_newest(tmp_path: Path) -> None:
    """A-CKPT-04"""
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, step, filled())
        prune(tmp_path, 1)
        assert [path.name for path in tmp_path.iterdir()] == [f"step_{step}"]


def test_a_failed_save_leaves_the_earlier_checkpoint_and_no_leftovers(tmp_path: Path) -> None:
    """A-CKPT-03, A-CKPT-04"""
    write_checkpoint(tmp_path, 3, filled())

    def fails(folder: Path) -> None:
        filled()(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="step_4"):
        write_checkpoint(tmp_path, 4, fails)
    assert [path.name for path in tmp_path.iterdir()] == ["step_3"]
    assert find_newest(tmp_path).step == 3


def test_a_real_write_limit_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    """A-CKPT-03, with the operating system refusing the write."""
    write_checkpoint(tmp_path, 1, filled())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        with pytest.raises(CheckpointError, match="step_2"):
            write_checkpoint(tmp_path, 2, filled(b"x" * 100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]


def test_overwriting_the_same_step_ends_in_one_complete_checkpoint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 5, filled(b"old"))
    path = write_checkpoint(tmp_path, 5, filled(b"new"))
    assert (path / "actor" / "model.safetensors").read_bytes() == b"new"
    assert problems(path, checksums=True) == []


KILLED = """
import sys, time
from pathlib import Path
from rl_compat.trainer.checkpoints import write_checkpoint
root = Path(sys.argv[1])
def slow(folder):
    (folder / "actor").mkdir()
    for part in range(200):
        with (folder / "actor" / "model.safetensors").open("ab") as file:
            file.write(b"y" * 1000)
        print("writing", flush=True)
        time.sleep(0.02)
write_checkpoint(root, 2, slow)
"""


def test_kill_9_in_the_middle_of_a_save_leaves_the_old_one_and_the_rest_is_cleaned_up(tmp_path: Path) -> None:
    """A-CKPT-09"""
    write_checkpoint(tmp_path, 1, filled())
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.wait()
    process.stdout.close()
    assert find_newest(tmp_path).step == 1
    write_checkpoint(tmp_path, 2, filled())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_1", "step_2"]


def test_a_crash_between_the_two_renames_of_a_replacement_loses_nothing(tmp_path: Path) -> None:
    """A-CKPT-09: the old one was taken away and the new one not yet put there."""
    old = write_checkpoint(tmp_path, 5, filled(b"old"))
    old.rename(tmp_path / ".old-step_5")
    (tmp_path / ".writing-step_5").mkdir()
    before = sorted(tmp_path.rglob("*"))
    found = find_newest(tmp_path)
    assert (found.step, found.skipped) == (5, ())
    assert found.path is not None and (found.path / "actor" / "model.safetensors").read_bytes() == b"old"
    assert sorted(tmp_path.rglob("*")) == before
    path = write_checkpoint(tmp_path, 6, filled(b"new"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_5", "step_6"]
    assert find_newest(tmp_path).path == path


def test_a_crash_while_pruning_leaves_nothing_for_long(tmp_path: Path) -> None:
    """A-CKPT-04"""
    half_removed = write_checkpoint(tmp_path, 1, filled()).rename(tmp_path / ".writing-step_1")
    (half_removed / "manifest.json").unlink()
    write_checkpoint(tmp_path, 2, filled())
    assert [path.name for path in tmp_path.iterdir()] == ["step_2"]


@pytest.mark.parametrize(
    ("error", "reason", "is_space"),
    [
        (OSError(28, "No space left on device"), errno.ENOSPC, True),
        (OSError(122, "Disk quota exceeded"), errno.EDQUOT, False),
        (OSError(5, "Input/output error"), errno.EIO, False),
        (SafetensorError("Error while serializing: I/O error: No space left (os error 28)"), errno.ENOSPC, True),
        (SafetensorError("Error while serializing: I/O error: File too large (os error 27)"), errno.EFBIG, False),
    ],
)
def test_a_failed_write_names_its_own_cause(tmp_path: Path, error: Exception, reason: int, is_space: bool) -> None:
    """A-CKPT-03: the free space is named where it is the cause."""

    def fails(folder: Path) -> None:
        (folder / "half").write_bytes(b"x" * 2048)
        raise error

    with pytest.raises(CheckpointError) as stop:
        write_checkpoint(tmp_path, 1, fails)
    assert WRITE_FAILURES[reason][0] in stop.value.message
    assert WRITE_FAILURES[reason][1] in str(stop.value.hint)
    assert ("2.0 KiB" in stop.value.message) is is_space
    assert list(tmp_path.iterdir()) == []


def test_too_small_a_disk_is_refused_with_both_numbers(tmp_path: Path) -> None:
    trainer = TrainerConfig(output_dir=str(tmp_path / "run"), save_every=1, keep_checkpoints=2)
    with pytest.raises(DoesNotFitError) as stop:
        check_disk(trainer, 1024**4, total_steps=10)
    assert "3.0 TiB" in stop.value.message and "1.0 TiB" in stop.value.message
    check_disk(trainer, 1024, total_steps=10)


def test_the_record_of_responses_counts_as_well(tmp_path: Path) -> None:
    trainer = TrainerConfig(output_dir=str(tmp_path / "run"), save_every=1, keep_checkpoints=2)
    with pytest.raises(DoesNotFitError) as stop:
        check_disk(trainer, 1024, total_steps=10, record_bytes=5 * 1024**4)
    assert "5.0 TiB" in stop.value.message and "samples.keep_gib" in str(stop.value.hint)
    check_disk(trainer, 1024, total_steps=10, record_bytes=1024)


@pytest.mark.parametrize(
    ("existing", "total_steps", "save_every", "keep", "expected"),
    [
        ((), 100, 0, 2, 1),
        ((), 100, 10, 2, 3),
        ((), 100, 60, 2, 2),
        ((), 100, 50, 2, 2),
        ((), 100, 500, 2, 1),
        ((), 1, 1, 2, 1),
        ((40,), 100, 0, 2, 2),
        ((30, 40), 100, 10, 2, 3),
        ((40,), 100, 100, 1, 2),
        ((100,), 100, 10, 2, 1),
        ((90, 100), 100, 10, 2, 2),
    ],
)
def test_as_many_checkpoints_are_asked_for_as_the_run_holds_at_once(
    existing: tuple[int, ...], total_steps: int, save_every: int, keep: int, expected: int, tmp_path: Path
) -> None:
    for step in existing:
        (tmp_path / f"step_{step}").mkdir()
    assert most_at_once(tmp_path, total_steps=total_steps, save_every=save_every, keep=keep) == expected


def test_the_manifest_lists_every_file_with_size_and_sum(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 7, filled())
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["step"] == 7
    assert set(manifest["files"]) == {"actor/model.safetensors", "actor/optimizer.pt"}
    assert manifest["files"]["actor/model.safetensors"]["bytes"] == 7
    assert len(manifest["files"]["actor/model.safetensors"]["sha256"]) == 64


def test_a_checkpoint_that_is_read_is_not_pruned(tmp_path: Path) -> None:
    for step in (1, 2):
        write_checkpoint(tmp_path, step, filled())
    with held(lambda: open_checkpoint(tmp_path / "step_1")) as found:
        assert prune(tmp_path, 1) == []
        assert found.path is not None
        assert problems(found.path, checksums=True) == []
    assert [path.name for path in prune(tmp_path, 1)] == ["step_1"]


def test_a_reader_takes_the_next_checkpoint_when_its_own_is_removed_meanwhile(tmp_path: Path) -> None:
    """The training run saves step 2 and removes step 1 between the choice and the lock."""
    write_checkpoint(tmp_path, 1, filled())
    calls: list[int] = []

    def choose() -> FoundCheckpoint:
        found = find_newest(tmp_path)
        if not calls:
            write_checkpoint(tmp_path, 2, filled())
            prune(tmp_path, 1)
        calls.append(found.step)
        return found

    with held(choose) as found:
        assert found.step == 2
    assert calls == [1, 2]
