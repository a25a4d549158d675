"""The record on disk is complete up to some step, whatever happens to the process."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
from fakes.responses import groups

from rl_compat.errors import RLCompatError
from rl_compat.replay.record import (
    RecordLimits,
    RecordWriter,
    apply_limits,
    drawn_groups,
    forget_steps_after,
    read_steps,
    record_files,
    steps_of,
)

KILLS = """
import os, random, signal, sys, time
from pathlib import Path
from fakes.responses import groups
from rl_compat.replay.record import RecordLimits, RecordWriter

moments = random.Random(0)
groups(0)
for number in range(100):
    folder = Path(sys.argv[1], str(number))
    folder.mkdir()
    child = os.fork()
    if child == 0:
        writer = RecordWriter(folder, RecordLimits(merged_steps=4))
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

    found = dict(read_steps(tmp_path / "replay"))

    assert {step: table["group"].unique().to_pylist() for step, table in found.items()} == {
        1: [1, 101],
        2: [2, 102],
        10: [10, 110],
    }
    assert [drawn_groups(table) for table in found.values()] == [[], [0], list(range(9))]
    assert next(read_steps(tmp_path / "replay", ["reward"]))[1].column_names == ["reward"]
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

    with pytest.raises(RLCompatError, match=r"step 1 .*replay"):
        writer.flush()
    with pytest.raises(RLCompatError, match=r"step 1 .*replay"):
        writer.write(2, groups(2))
    writer.close()


def test_a_file_that_is_not_what_was_written_is_named(tmp_path: Path) -> None:
    for content in (b"PAR1", b""):
        (tmp_path / "step_00000001.parquet").write_bytes(content)
        with pytest.raises(RLCompatError, match="step_00000001"):
            list(read_steps(tmp_path))
    pyarrow.parquet.write_table(groups(1), tmp_path / "step_00000001.parquet")
    with pytest.raises(RLCompatError, match="step_00000001"):
        list(read_steps(tmp_path))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_many_files_become_few_and_lose_nothing(tmp_path: Path) -> None:
    writer, merging = RecordWriter(tmp_path / "many"), RecordWriter(tmp_path / "few", RecordLimits(merged_steps=3))
    for step in range(1, 9):
        for one in (writer, merging):
            table = groups(step, 100 + step, version=step - 1)
            changed = table.append_column("reward/extra", [[1.0] * 4]) if step == 2 else table
            one.write(step, changed, drawn=range(step - 1))
    writer.close()
    merging.close()

    assert names(tmp_path / "few") == [
        "step_00000007.parquet",
        "step_00000008.parquet",
        "steps_00000001_00000003.parquet",
        "steps_00000004_00000006.parquet",
    ]
    many, few = dict(read_steps(tmp_path / "many")), dict(read_steps(tmp_path / "few"))
    assert list(few) == list(many) == list(range(1, 9))
    for step, table in few.items():
        assert table.select(many[step].column_names).to_pylist() == many[step].to_pylist()
        assert drawn_groups(table) == drawn_groups(many[step]) == list(range(step - 1))
    assert few[2]["reward/extra"].to_pylist() == [1.0] * 4
    assert few[1]["reward/extra"].null_count == 4
    assert [step for step, _ in read_steps(tmp_path / "few", ["group"], steps=(3, 5))] == [3, 4, 5]


def test_a_resumed_run_cuts_a_file_of_several_steps(tmp_path: Path) -> None:
    for last in (5, 4):
        writer = RecordWriter(tmp_path / str(last), RecordLimits(merged_steps=6))
        for step in range(1, 7):
            writer.write(step, groups(step))
        writer.close()
        forget_steps_after(last, tmp_path / str(last))
        assert names(tmp_path / str(last)) == [f"steps_00000001_{last:08}.parquet"]
        assert [step for step, _ in read_steps(tmp_path / str(last))] == list(range(1, last + 1))


def test_files_that_another_one_replaces_are_not_read_and_go_when_a_run_continues(tmp_path: Path) -> None:
    """A process was killed between the merged file and the removal of its parts, or while it cut a file."""
    writer = RecordWriter(tmp_path, RecordLimits(merged_steps=3))
    writer.write(1, groups(1))
    writer.flush()
    first = (tmp_path / "step_00000001.parquet").read_bytes()
    for step in (2, 3, 4):
        writer.write(step, groups(step))
    writer.close()
    (tmp_path / "step_00000001.parquet").write_bytes(first)
    (tmp_path / "steps_00000001_00000002.parquet").write_bytes(b"PAR1")

    assert [step for step, _ in read_steps(tmp_path)] == [1, 2, 3, 4]
    forget_steps_after(4, tmp_path)

    assert names(tmp_path) == ["step_00000004.parquet", "steps_00000001_00000003.parquet"]


def test_the_oldest_steps_leave_beyond_the_limit(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    for step in range(1, 6):
        writer.write(step, groups(step))
    writer.close()
    size = (tmp_path / "step_00000005.parquet").stat().st_size

    apply_limits(tmp_path, RecordLimits(merged_steps=5, max_bytes=int(3.5 * size)))

    assert [step for step, _ in read_steps(tmp_path)] == [3, 4, 5]
    apply_limits(tmp_path, RecordLimits(max_bytes=1))
    assert [step for step, _ in read_steps(tmp_path)] == [5]


def test_a_reader_goes_on_where_files_are_merged_meanwhile(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    for step in range(1, 7):
        writer.write(step, groups(step))
    writer.close()

    reader = read_steps(tmp_path)
    found = [next(reader)[0]]
    apply_limits(tmp_path, RecordLimits(merged_steps=3))
    found += [step for step, _ in reader]

    assert found == [1, 2, 3, 4, 5, 6]


def test_steps_that_a_killed_merge_has_left_do_not_come_back(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    for step in (1, 2, 3, 4):
        writer.write(step, groups(step, version=step - 1))
    writer.close()
    single = {file.path: file.path.read_bytes() for file in record_files(tmp_path)}
    apply_limits(tmp_path, RecordLimits(merged_steps=4))
    for path, content in single.items():
        path.write_bytes(content)

    forget_steps_after(2, tmp_path)

    assert [step for step, _ in read_steps(tmp_path)] == [1, 2]


def test_kill_9_at_any_of_100_moments_leaves_whole_steps_and_loses_none_that_was_flushed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLS, tmp_path], check=True, env={"PYTHONPATH": ":".join(sys.path)})

    written, moments = [], random.Random(0)
    for folder in sorted(tmp_path.iterdir()):
        steps = [step for file in record_files(folder) for step in steps_of(file)]
        assert steps == list(range(1, len(steps) + 1))
        flushed = (folder / "flushed").read_text() if (folder / "flushed").exists() else ""
        assert len(steps) >= int(flushed or 0)
        for step, table in read_steps(folder):
            assert table["group"].to_pylist() == [step, step]
            assert drawn_groups(table) == [step - 1]
        kept = moments.randint(len(steps) // 2, len(steps))
        forget_steps_after(kept, folder)
        assert [step for step, _ in read_steps(folder, ["group"])] == list(range(1, kept + 1))
        assert not list(folder.glob(".step*"))
        written.append(len(steps))
    assert len(written) == 100 and len(set(written)) > 3
