from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl_compat.tracking.jsonl import JsonlTracker, forget_after


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


def test_a_step_is_one_object_with_all_digits(path):
    tracker = JsonlTracker(path)

    tracker.log(1, {"actor/pg_loss": 0.1 + 0.2, "num_tokens": 12})

    assert path.read_text() == '{"step": 1, "actor/pg_loss": 0.30000000000000004, "num_tokens": 12}\n'


def test_values_that_json_does_not_have_are_null(path):
    JsonlTracker(path).log(1, {"a": math.nan, "b": -math.inf, "c": 1.0})

    assert json.loads(path.read_text()) == {"step": 1, "a": None, "b": None, "c": 1.0}


def test_lines_survive_a_process_that_is_killed(path):
    program = f"""
import os, signal
from pathlib import Path
from rl_compat.tracking.jsonl import JsonlTracker
JsonlTracker(Path({str(path)!r})).log(7, {{"a": 1.0}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).parents[2]
    killed = subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(root)}, check=False)

    assert killed.returncode == -signal.SIGKILL
    assert steps(path) == [7]


def test_resuming_drops_the_steps_that_are_done_again(path):
    first = JsonlTracker(path)
    for step in (0, 1, 2, 2, 3, 4):
        first.log(step, {"a": step / 3})
    first.close()
    kept = path.read_text().splitlines(keepends=True)[:4]

    forget_after(2, path)
    JsonlTracker(path).log(3, {"a": 9.0})

    assert steps(path) == [0, 1, 2, 2, 3]
    assert path.read_text().splitlines(keepends=True)[:4] == kept
    assert list(path.parent.iterdir()) == [path]


def test_resuming_drops_a_line_that_was_cut_off(path):
    JsonlTracker(path).log(1, {"a": 1.0})
    with path.open("a") as file:
        file.write('{"step": 2, "a": 0.')

    forget_after(5, path)
    JsonlTracker(path).log(6, {"a": 2.0})

    assert steps(path) == [1, 6]


@pytest.mark.parametrize("damage", ["not json\n", '{"a": 1}\n', "[1, 2]\n", "17\n", "\n", '{"step": null}\n'])
def test_resuming_drops_lines_that_are_no_steps(path, damage):
    JsonlTracker(path).log(1, {"a": 1.0})
    with path.open("a") as file:
        file.write(damage)

    forget_after(5, path)

    assert steps(path) == [1]


def test_beginning_again_at_step_zero_keeps_nothing(path):
    tracker = JsonlTracker(path)
    tracker.log(0, {"val": 0.5})
    tracker.log(1, {"a": 0.5})

    forget_after(0, path)
    JsonlTracker(path).log(0, {"val": 0.5})

    assert steps(path) == [0]


def test_closing_twice_is_harmless(path):
    tracker = JsonlTracker(path)

    tracker.close()
    tracker.close()
