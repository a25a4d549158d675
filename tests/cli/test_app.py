"""The command line as its user meets it: exit codes, errors, help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rl_compat
from rl_compat.cli.app import COMMANDS, main
from rl_compat.cli.render import show_error
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


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rlc {rl_compat.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "in_error", "in_hint"),
    [
        (["trian"], ["`trian`"], "`rlc train`"),
        (["--verbose"], ["`--verbose`"], "`rlc --help`"),
        (["train", "--fast"], ["--fast"], "`rlc train --help`"),
        (["bench", "rollout", "--fast"], ["--fast"], "`rlc bench rollout --help`"),
        (["data"], [], "`rlc data --help`"),
        (["data", "gsm9k"], ["'gsm9k'"], "`rlc data --help`"),
        (
            ["train", "optimizer.lerning_rate=1e-6"],
            ["`optimizer.lerning_rate=1e-6`", "`optimizer.lerning_rate`"],
            "`optimizer.actor_lr`",
        ),
        (["train", "trainer.seed"], ["`trainer.seed`", "`key=value`"], "`trainer."),
        (["train", "nothing.toml"], ["`nothing.toml`"], ""),
        (["train", "a.toml", "b.toml"], ["`a.toml`", "`b.toml`"], "`key=value`"),
    ],
)
def test_a_usage_error_is_two_lines_on_stderr(
    arguments: list[str], in_error: list[str], in_hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A-UX-05."""
    assert main(arguments) == 2

    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("error: ")
    assert all(literal in lines[0] for literal in in_error)
    assert lines[1].startswith("hint: ")
    assert in_hint in lines[1]


def test_a_wrong_setting_ends_the_process_with_two_and_no_traceback() -> None:
    done = rlc("train", "trainer.batch_size=0")

    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "`trainer.batch_size=0`" in line


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
        "from rl_compat.cli.options import new_app\n"
        "app = new_app()\n"
        "@app.command()\n"
        "def wait() -> None:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(3600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, script, tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()

    assert process.returncode == 130
    assert errors == "interrupted\n"


@pytest.mark.parametrize(("given", "policy"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "active"}, "ACTIVE")])
def test_threads_of_torch_sleep_while_they_wait_unless_the_environment_says_otherwise(
    given: dict[str, str], policy: str
) -> None:
    code = "from rl_compat.cli.app import main; main(['--version']); import torch; torch.set_num_threads(1)"
    variables = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    variables |= {"OMP_DISPLAY_ENV": "TRUE", **given}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=True)
    assert f"OMP_WAIT_POLICY = '{policy}'" in done.stderr
