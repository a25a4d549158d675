"""`rlc doctor explain` as its users call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rl_compat.doctor.command import main
from rl_compat.doctor.explain.patterns import known_errors
from rl_compat.doctor.report.as_json import EXPLAIN_SCHEMA

ROOT = Path(__file__).parents[3]
P40 = str(ROOT / "tests/recordings/p40_cu128_wheel.json")
H200 = str(ROOT / "tests/recordings/h200.json")
TITLES = {error.id: error.title for error in known_errors()}
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB.\n"
WARNING = "WARNING: Compute capability < 7.5 detected! Only slow 8-bit matmul is supported for your GPU!\n"


def explain(*arguments: str) -> int:
    return main(["explain", *arguments], program="rlc doctor")


def piped(text: bytes, *arguments: str, isolated: bool = False) -> subprocess.CompletedProcess[bytes]:
    python = [sys.executable, *(["-S"] if isolated else [])]
    command = [*python, str(ROOT / "doctor"), "explain", *arguments]
    return subprocess.run(command, input=text, capture_output=True, timeout=60, check=False)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(f"step 1\nstep 2\n{OOM}step 3\n", encoding="utf-8")
    return path


def test_a_known_fault_gives_one(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = explain(str(log), "--hardware", P40)

    out = capsys.readouterr().out
    assert code == 1
    assert f"{log}, 4 lines: {TITLES['cuda_oom']}" in out
    assert "  > 3  torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB." in out
    assert "    2  step 2" in out and "    4  step 3" in out
    assert "rlc plan --explain" in out
    assert out.splitlines()[-1].startswith("sources, cuda_oom")


def test_a_warning_alone_gives_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(WARNING)

    assert explain(str(tmp_path / "log"), "--hardware", P40) == 0
    assert f"performance: {TITLES['bnb_int8_slow']}" in capsys.readouterr().out


def test_a_log_without_error_gives_zero_and_looks_at_no_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text("step 1\nstep 2\n")

    assert explain(str(tmp_path / "log")) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'log'}, 2 lines: ")


def test_unknown_text_shows_its_last_errors_the_nearest_and_what_to_collect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text("x\nRuntimeError: no binary of the kernel image exists for this device\n")

    code = explain(str(tmp_path / "log"))

    out = capsys.readouterr().out
    assert code == 0
    assert f"{tmp_path / 'log'}, 2 lines: " in out
    assert "  > 2  RuntimeError: no binary of the kernel image" in out
    assert f"  ? {TITLES['no_kernel_image']}" in out
    assert "rlc doctor --bundle" in out


def test_a_warning_beside_an_unknown_error_does_not_hide_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text(f"{WARNING}step\nValueError: something else\n")

    assert explain(str(tmp_path / "log"), "--hardware", P40) == 0
    out = capsys.readouterr().out
    assert TITLES["bnb_int8_slow"] in out
    assert "ValueError: something else" in out


def test_consequences_stand_under_their_cause(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explain(str(logs / "cases" / "oom_then_timeout.txt"), "--hardware", P40)

    out = capsys.readouterr().out
    assert out.index(f"fault: {TITLES['cuda_oom']}") < out.index("consequences:") < out.index("line 44 (3 times): ")
    assert out.count("fault: ") == 1


def test_a_log_from_another_card_is_reported_as_such(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explain(str(logs / "cases" / "driver_warning_then_no_kernel.txt"), "--hardware", H200, "--json")

    cause = json.loads(capsys.readouterr().out)["causes"][0]
    assert cause["concerns_this_machine"] in ("no", "unlikely")
    assert "9.0" in cause["why"]


def test_json_has_what_the_page_has(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = explain(str(logs / "cases" / "oom_then_timeout.txt"), "--hardware", P40, "--json")

    found = json.loads(capsys.readouterr().out)
    cause = found["causes"][0]
    assert (found["schema"], found["exit_code"], code) == (EXPLAIN_SCHEMA, 1, 1)
    assert (cause["id"], cause["layer"], cause["severity"]) == ("cuda_oom", "memory", "fault")
    assert cause["lines"][0]["first"] == 40
    assert [after["id"] for after in cause["consequences"]] == ["nccl_timeout", "peer_gone", "child_failed"]
    assert cause["remedies"][0].keys() == {"what", "step", "commands", "certainty"}
    assert found["nearest"] == found["unrecognised"] == found["collect"] == []


def test_json_of_unknown_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("nvcc fatal: Unsupported architecture compute_61\n")

    assert explain(str(tmp_path / "log"), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["causes"] == []
    assert found["nearest"][0]["id"] == "nvcc_arch_old"
    assert found["unrecognised"] == [{"number": 1, "text": "nvcc fatal: Unsupported architecture compute_61"}]


@pytest.mark.parametrize(
    ("arguments", "fact", "hint"),
    [
        (["no/such.log"], "`no/such.log`", "`no`"),
        (["."], "`.` is a folder", ""),
        (["a.log", "b.log"], "unrecognized arguments: b.log", "`rlc doctor explain --help`"),
        (["--torch-timeout", "soon"], "`--torch-timeout`: `soon`", ""),
        (["--jsn"], "unrecognized arguments: --jsn", ""),
        (["x", "--hardware", "no.json"], "`no.json`", ""),
    ],
)
def test_a_usage_error_gives_two(
    arguments: list[str], fact: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = explain(*arguments)

    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    error, _, rest = shown.err.partition("\nhint: ")
    assert error.startswith("error: ")
    assert fact in error
    assert hint in rest


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain("--help") == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: rlc doctor explain [OPTION]... [FILE|-]")
    assert "rlc doctor explain train.log" in out
    assert "exit codes: 0 " in out


def test_a_bare_checkout_explains_what_is_piped_in() -> None:
    text = b"\x1b[31mstep 1\x1b[0m\r\n\xff\xfe caf\xe9\r\n" + OOM.encode() + b" 50%|##\r100%|####\r\n"

    done = piped(text, "-", "--no-torch", "--no-network", isolated=True)

    assert done.returncode == 1, done.stderr
    assert b"the text, 4 lines: out of GPU memory" in done.stdout
    assert b"\x1b" not in done.stdout


def test_an_empty_pipe_is_a_usage_error() -> None:
    done = piped(b"")

    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ")


def test_a_terminal_is_not_read_from() -> None:
    """A command that would wait for typing says what it wants instead."""
    import os
    import pty

    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, str(ROOT / "doctor"), "explain"], stdin=theirs, capture_output=True, timeout=60, check=False
    )
    os.close(ours)
    os.close(theirs)

    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ")
    assert b"\nhint: " in done.stderr
    assert b"| python3 doctor explain`" in done.stderr


def test_torch_is_left_alone_when_asked(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(str(log), "--no-torch") == 1
    assert TITLES["cuda_oom"] in capsys.readouterr().out


def test_the_text_of_a_log_cannot_reach_the_terminal_as_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_bytes(b"\x1b]0;title\x07\x1b[2J\x07" + OOM.encode())

    explain(str(tmp_path / "log"), "--hardware", P40)

    assert not any(ord(character) < 32 and character != "\n" for character in capsys.readouterr().out)
