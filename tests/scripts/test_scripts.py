"""The scripts of the README: what they run, in which order, and what they say when something is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> {log}
case "$*" in
  *version_info*) exit 0 ;;
  *importlib.metadata*) echo torch==2.13.0+cpu ;;
  *--constraint*) cat "$5" >> {log} ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the scripts and what they read, without an environment."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.fixture
def prepared(checkout: Path) -> Path:
    """A checkout whose environment only writes down what it is asked to run."""
    programs = checkout / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "rlc"):
        write_program(programs / name, PROGRAM.format(log=checkout / "log"))
    return checkout


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def run(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RLC_")}
    return subprocess.run(
        ["bash", str(script), *arguments], env={**variables, **environment}, capture_output=True, text=True, cwd="/"
    )


def ran(checkout: Path) -> list[str]:
    lines = (checkout / "log").read_text().splitlines()
    return [line.rstrip() for line in lines if " -c " not in line]


@pytest.mark.parametrize("name", ["quickstart.sh", "test.sh", "install_torch.sh"])
def test_help_says_what_it_does_and_does_nothing(checkout: Path, name: str) -> None:
    done = run(checkout / "scripts" / name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: scripts/{name}")
    assert "RLC_TORCH" in done.stdout
    assert not (checkout / ".venv").exists()


def test_quickstart_installs_torch_first_and_holds_it(prepared: Path) -> None:
    done = run(prepared / "scripts/quickstart.sh", "trainer.num_steps=3", "data.seed=7")
    lines = ran(prepared)
    assert done.returncode == 0, done.stderr
    assert lines[0] == f"python {prepared}/doctor/install_torch.py"
    assert lines[1].startswith("python -m pip install --constraint ")
    assert lines[1].endswith(f" --editable {prepared}[track]")
    assert lines[2:] == [
        "torch==2.13.0+cpu",
        "rlc models get smollm2-135m",
        "rlc train trainer.num_steps=3 data.seed=7",
    ]
    assert "runs/default" in done.stdout


def test_a_second_quickstart_installs_nothing_anew(prepared: Path) -> None:
    run(prepared / "scripts/quickstart.sh")
    (prepared / "log").unlink()
    run(prepared / "scripts/quickstart.sh")
    assert ran(prepared)[1:] == ["rlc models get smollm2-135m", "rlc train gsm8k"]


def test_a_changed_project_is_installed_again(prepared: Path) -> None:
    run(prepared / "scripts/quickstart.sh")
    (prepared / "log").unlink()
    with (prepared / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    run(prepared / "scripts/quickstart.sh")
    assert any("--editable" in line for line in ran(prepared))


def test_test_sh_adds_the_test_extras_and_hands_arguments_to_pytest(prepared: Path) -> None:
    done = run(prepared / "scripts/test.sh", "tests/algorithms", "-x")
    lines = ran(prepared)
    assert done.returncode == 0, done.stderr
    assert lines[1].endswith(f"--editable {prepared}[dev,quant]")
    assert lines[-1] == "python -m pytest tests/algorithms -x"


def test_a_failing_install_is_one_clear_error(prepared: Path) -> None:
    write_program(
        prepared / ".venv/bin/python",
        PROGRAM.format(log=prepared / "log").replace("*--constraint*) ", "*--constraint*) exit 1 ;;\n  never) "),
    )
    done = run(prepared / "scripts/quickstart.sh")
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert "PIP_INDEX_URL" in done.stderr
    assert "rlc models get smollm2-135m" not in ran(prepared)


def test_no_python_is_an_error_that_says_what_to_do(checkout: Path) -> None:
    empty = checkout / "programs"
    empty.mkdir()
    for name in ("bash", "dirname", "cat"):
        (empty / name).symlink_to(shutil.which(name) or name)
    done = run(checkout / "scripts/quickstart.sh", PATH=str(empty))
    assert done.returncode == 2
    assert "3.11" in done.stderr
    assert "RLC_PYTHON=" in done.stderr


def test_a_named_python_that_is_too_old_is_refused(checkout: Path) -> None:
    write_program(checkout / "python2", "#!/bin/sh\nexit 1\n")
    done = run(checkout / "scripts/quickstart.sh", RLC_PYTHON=str(checkout / "python2"))
    assert done.returncode == 2
    assert f"`{checkout / 'python2'}`" in done.stderr
    assert "3.11" in done.stderr


def test_a_python_without_venv_is_an_error_that_says_what_to_install(checkout: Path) -> None:
    write_program(
        checkout / "python", f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; *) exec {sys.executable} "$@" ;; esac\n'
    )
    done = run(checkout / "scripts/quickstart.sh", RLC_PYTHON=str(checkout / "python"))
    assert done.returncode == 2
    assert "python3-venv" in done.stderr


def test_a_full_disk_is_said_with_both_sizes(checkout: Path) -> None:
    programs = checkout / "programs"
    programs.mkdir()
    write_program(programs / "df", "#!/bin/sh\necho head\necho /dev/sda 9 9 1048576 99% /\n")
    done = run(checkout / "scripts/quickstart.sh", RLC_PYTHON=sys.executable, PATH=f"{programs}:{os.environ['PATH']}")
    assert done.returncode == 2
    assert "1024 MiB" in done.stderr
    assert "5 GiB" in done.stderr
    assert not (checkout / ".venv").exists()


def test_the_environment_may_be_elsewhere(prepared: Path) -> None:
    elsewhere = prepared / "elsewhere"
    (prepared / ".venv").rename(elsewhere)
    done = run(prepared / "scripts/test.sh", "--version", RLC_VENV=str(elsewhere))
    assert done.returncode == 0, done.stderr
    assert ran(prepared)[-1] == "python -m pytest --version"
    assert not (prepared / ".venv").exists()


def test_a_broken_environment_is_named(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    done = run(checkout / "scripts/quickstart.sh")
    assert done.returncode == 2
    assert f"`{checkout}/.venv`" in done.stderr


def test_install_torch_names_a_python_that_is_missing() -> None:
    done = run(ROOT / "scripts/install_torch.sh", "/nonexistent/python")
    assert done.returncode == 2
    assert "`/nonexistent/python`" in done.stderr


def test_rlc_torch_is_handed_to_pip(tmp_path: Path) -> None:
    wheel = tmp_path / "torch-2.13.0-py3-none-any.whl"
    done = run(ROOT / "scripts/install_torch.sh", sys.executable, RLC_TORCH=str(wheel))
    assert done.returncode == 1
    assert f"`{wheel}`" in done.stdout
    assert f"`pip install {wheel}`" in done.stderr
