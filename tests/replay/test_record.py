"""The record on disk is complete up to some step, whatever happens to the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fakes.responses import groups

from rl_compat.errors import RLCompatError
from rl_compat.replay.record import RecordWriter, drawn_groups, forget_steps_after, parts, read_parts

KILLS = """
import os, random, signal, sys, time
from pathlib import Path
from fakes.responses import groups
from rl_compat.replay.record import RecordWriter

moments = random.Random(0)
groups(0)
for number in range(100):
    folder = Path(sys.argv[1], str(number))
    folder.mkdir()
    child = os.fork()
    if child == 0:
        writer = RecordWriter(folder)
        for step in range(1, 1_000_000):
            writer.write(step, groups(step, version=step - 1), drawn=[step - 1])
            if step % 3 == 0:
                writer.flush()
                (folder / "flushed").write_text(str(step))
    while not any(folder.glob("*.parquet")):
        time.sleep(0.001)
    time.sleep(0.05 * moments.random())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def test_steps_come_back_in_order_with_what_they_drew(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "replay")
    for step in (1, 2, 10):
        writer.write(step, groups(step, 100 + step, version=step - 1), drawn=range(step - 1))
    writer.flush()

    found = dict(read_parts(tmp_path / "replay"))

    assert {step: table["group"].unique().to_pylist() for step, table in found.items()} == {
        1: [1, 101],
        2: [2, 102],
        10: [10, 110],
    }
    assert [drawn_groups(table) for table in found.values()] == [[], [0], list(range(9))]
    assert next(read_parts(tmp_path / "replay", ["reward"]))[1].column_names == ["reward"]
    writer.close()


def test_a_resumed_run_writes_later_steps_again(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    for step in (1, 2, 3):
        writer.write(step, groups(step))
    writer.close()
    (tmp_path / ".step_00000004.parquet.writing").write_bytes(b"PAR1")

    forget_steps_after(1, tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001.parquet"]


def test_a_failed_write_reaches_the_next_call(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    writer = RecordWriter(tmp_path / "file" / "replay")

    writer.write(1, groups(1))

    with pytest.raises(RLCompatError, match="step_00000001"):
        writer.flush()
    with pytest.raises(RLCompatError, match="step_00000001"):
        writer.write(2, groups(2))
    writer.close()


def test_a_file_that_is_not_what_was_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "step_00000001.parquet").write_bytes(b"PAR1")

    with pytest.raises(RLCompatError, match="step_00000001"):
        list(read_parts(tmp_path))


def test_kill_9_at_any_of_100_moments_leaves_whole_steps_and_loses_none_that_was_flushed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLS, tmp_path], check=True, env={"PYTHONPATH": ":".join(sys.path)})

    written = []
    for folder in sorted(tmp_path.iterdir()):
        steps = [step for step, _ in parts(folder)]
        assert steps == list(range(1, len(steps) + 1))
        flushed = (folder / "flushed").read_text() if (folder / "flushed").exists() else ""
        assert len(steps) >= int(flushed or 0)
        for step, table in read_parts(folder):
            assert table["group"].to_pylist() == [step, step]
            assert drawn_groups(table) == [step - 1]
        forget_steps_after(len(steps), folder)
        assert not list(folder.glob(".step_*"))
        written.append(len(steps))
    assert len(written) == 100 and len(set(written)) > 3
