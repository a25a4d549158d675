"""Runs that are killed at random moments of every stage end as undisturbed ones do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "kill_runs.py"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--kills", "5", "--only", "grpo, reuse"], marks=pytest.mark.slow),
        pytest.param(["--kills", "100"], marks=pytest.mark.slow),
        pytest.param(
            ["--kills", "12", "--only", "two processes, staleness 0", "two processes, staleness 1"],
            marks=[pytest.mark.slow, pytest.mark.ray],
        ),
    ],
)
def test_kill_9_loses_nothing_and_counts_nothing_twice(options: list[str], tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--folder", str(tmp_path / "runs"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{options[1]} kills" in done.stdout.splitlines()[-1]
