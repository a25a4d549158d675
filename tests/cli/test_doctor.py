"""`rlc doctor`: the doctor's own arguments reach it unparsed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rl_compat.cli.app import main

RECORDINGS = Path(__file__).parents[1] / "recordings"
H200 = str(RECORDINGS / "h200.json")


def test_help_is_the_doctors_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--help"]) == 0

    shown = capsys.readouterr().out
    assert shown.startswith("Usage: rlc doctor [OPTION]...")
    assert "--torch-timeout SECONDS" in shown


def test_options_and_their_values_keep_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--only", "terminal", "--hardware", H200, "--json", "--only=ram,disk"])

    shown = json.loads(capsys.readouterr().out)
    assert code == 0
    assert {item["id"] for item in shown["checks"]} == {"terminal", "ram", "disk"}


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["--no-such"], "`--no-such`"),
        (["-x"], "`-x`"),
        (["--hardware"], "`--hardware`: expected one argument"),
        (["error.log"], "`error.log`"),
        (["--", "error.log"], "`error.log`"),
    ],
)
def test_a_usage_error_is_refused_by_the_doctor(
    arguments: list[str], fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *arguments]) == 2

    shown = capsys.readouterr()
    error, _, hint = shown.err.partition("\nhint: ")
    assert error.startswith("error: ") and fact in error and hint
    assert shown.out == ""


def test_a_failure_is_the_exit_code_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--hardware", str(RECORDINGS / "p40_cu128_wheel.json")]) == 1
    assert "torch==2.14.1+cu126" in capsys.readouterr().out


def test_the_first_word_explain_goes_to_the_reader_of_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.log"
    log.write_text("RuntimeError: CUDA error: no kernel image is available for execution on the device\n")

    code = main(["doctor", "explain", str(log), "--hardware", str(RECORDINGS / "p40_cu128_wheel.json")])

    assert code == 1
    assert "no kernel image" in capsys.readouterr().out


def test_the_module_is_an_entrance_too() -> None:
    command = [sys.executable, "-m", "rl_compat.doctor", "--hardware", H200, "--only", "terminal"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 check in ")
