"""The command line as its user meets it: exit codes, errors, help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rl_compat
from rl_compat.cli.app import COMMANDS, main, show_error
from rl_compat.errors import CheckpointError, RLCompatError


def rlc(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rl_compat", *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=120, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"]])
def test_help_lists_every_command_on_stdout(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Usage: rlc COMMAND [ARGUMENTS]..."
    for name, _, what in COMMANDS:
        assert any(line.split(maxsplit=1) == [name, what] for line in lines)


def test_no_command_is_asked_wrongly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rlc {rl_compat.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["trian"], "error: there is no command `trian`", "hint: did you mean `rlc train`"),
        (["--verbose"], "error: there is no option `--verbose`", "hint: `rlc --help` lists the commands"),
        (["train", "--fast"], "error: no such option: --fast", "hint: `rlc train --help` lists what it takes"),
        (["bench", "rollout", "--fast"], "error: no such option: --fast", "hint: `rlc bench rollout --help` lists"),
        (["data"], "error: missing command", "hint: `rlc data --help` lists what it takes"),
        (["data", "gsm9k"], "error: no such command 'gsm9k'", "hint: `rlc data --help` lists what it takes"),
        (
            ["train", "optimizer.lerning_rate=1e-6"],
            "error: argument `optimizer.lerning_rate=1e-6`: there is no setting `optimizer.lerning_rate`",
            "hint: did you mean `optimizer.actor_lr`",
        ),
        (["train", "trainer.seed"], "error: `trainer.seed` is not of the form `key=value`", "hint: write for example"),
        (["train", "nothing.toml"], "error: there is no settings file `nothing.toml`", "hint: "),
        (["train", "a.toml", "b.toml"], "error: `a.toml` and `b.toml` are both settings files", "hint: give one"),
    ],
)
def test_asking_wrongly_is_two_lines_on_stderr(
    arguments: list[str], error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A-UX-05."""
    assert main(arguments) == 2

    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(error)
    assert lines[1].startswith(hint)


def test_a_wrong_setting_ends_the_process_with_two_and_no_traceback() -> None:
    done = rlc("train", "trainer.batch_size=0")

    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: argument `trainer.batch_size=0`: `trainer.batch_size` is 0 and must be at least 1"
    ]


def test_the_traceback_is_shown_for_debugging() -> None:
    done = rlc("train", "trainer.batch_size=0", RLC_DEBUG="1")

    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")


def test_an_error_without_a_hint_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(CheckpointError("`a` is damaged"))

    assert capsys.readouterr().err == "error: `a` is damaged\n"
    assert CheckpointError("x").exit_code == RLCompatError("x").exit_code == 1


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m rl_compat --help | head -n 0; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() in ("0", "141")
    assert done.stderr == ""


def test_an_interrupt_is_exit_code_130(tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(
        "import sys\n"
        "from rl_compat.cli import app\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "app.COMMANDS = (('wait', 'waiting', 'wait'),)\n"
        "sys.exit(app.main(['wait']))\n"
    )
    (tmp_path / "waiting.py").write_text(
        "import time\n"
        "from rl_compat.cli.common import new_app\n"
        "app = new_app()\n"
        "@app.command()\n"
        "def wait() -> None:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, script, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)

    assert process.returncode == 130
    assert errors == ""
    assert time.monotonic() - started < 10
