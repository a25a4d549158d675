"""What hangs is given up on, what fails says so."""

from __future__ import annotations

import os
import sys
import time

import pytest

from rl_compat.hardware.system.timeouts import Background, run_program


def test_a_program_that_ends_says_what_it_wrote() -> None:
    finished = run_program(
        [sys.executable, "-c", "import os, sys; print(os.environ['A']); sys.exit(3)"],
        timeout_seconds=20,
        environment={**os.environ, "A": "x"},
    )
    assert (finished.stdout, finished.stderr, finished.returncode) == ("x\n", "", 3)


def test_a_program_that_hangs_keeps_what_it_wrote_and_dies_with_its_children() -> None:
    finished = run_program(["sh", "-c", "echo begun; sleep 300 & echo $!; wait"], timeout_seconds=0.5)
    said = finished.stdout.split()
    assert (said[0], finished.returncode) == ("begun", None)
    with pytest.raises(ProcessLookupError):
        _wait_until_gone(int(said[1]))


def _wait_until_gone(pid: int) -> None:
    for _ in range(3000):
        os.kill(pid, 0)
        if open(f"/proc/{pid}/stat").read().split()[2] == "Z":  # noqa: PTH123, SIM115
            raise ProcessLookupError
        time.sleep(0.02)


def test_a_program_that_ignores_being_asked_to_stop_is_killed() -> None:
    finished = run_program(["sh", "-c", "trap '' TERM INT; while :; do sleep 1; done"], timeout_seconds=0.3)
    assert finished.returncode is None


def test_a_call_in_the_background_answers_raises_or_takes_too_long() -> None:
    assert Background(lambda: 7).result(5) == 7
    assert Background(lambda: None).result(5) is None
    with pytest.raises(ZeroDivisionError):
        Background(lambda: 1 // 0).result(5)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        Background(lambda: time.sleep(2)).result(0.05)


def test_one_can_wait_for_a_call_and_go_on_without_its_answer() -> None:
    done, hanging = Background(lambda: 1 // 0), Background(lambda: time.sleep(2))
    assert done.ends_within(5)
    assert not hanging.ends_within(0.05)
