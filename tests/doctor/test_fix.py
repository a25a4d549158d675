"""`--fix --yes` in a real virtual environment with a local folder of wheels: pip's part is run, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pip
import pytest
from fakes.doctor import RECORDINGS, ROOT, check, finding, remedy

from rl_compat.doctor.command import run
from rl_compat.doctor.findings import Certainty, Severity, Step
from rl_compat.doctor.fix import Fix, refuse_system_python, run_all, runnable, split_plain
from rl_compat.errors import UsageError

PROGRAM = """
import importlib.metadata, sys
sys.path[:0] = [{root!r}, {tests!r}]
from fakes.doctor import check, finding, remedy
from rl_compat.doctor.command import main
from rl_compat.doctor.remedies import pip
from rl_compat.doctor.findings import Check, Severity, Step

def look(hardware, name, severity):
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        package = remedy(Step.PACKAGE, pip(hardware, "install", name), what="install " + name)
        yield finding(name + ".missing", severity, package, what=name + " is not installed")
        return
    yield finding(name + ".there", Severity.OK, what=name + " " + version + " is installed")

def ask(name, severity):
    return Check(id=name, question="is " + name + " there?", run=lambda hardware: look(hardware, name, severity))

system = check("system", finding("system.x", Severity.WARNING, remedy(Step.SYSTEM, "touch {trace}", what="touch it")))
checks = [ask(name, Severity[severity]) for name, severity in {asked!r}]
sys.exit(main({arguments!r}, program="doctor", checks=[*checks, system]))
"""


def make_wheel(folder: Path, name: str) -> None:
    """A wheel with one empty module."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for path, text in files.items()
    }
    lines = [f"{path},sha256={digests[path]},{len(text)}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""])
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment whose pip is this one's, by a link: unpacking another takes seconds."""
    folder = tmp_path_factory.mktemp("fixed")
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "lib" / version / "site-packages" / "pip").symlink_to(Path(pip.__file__).parent)
    return folder


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


def doctor(
    environment: Path, wheels: Path, *arguments: str, asked: list[tuple[str, str]]
) -> subprocess.CompletedProcess[str]:
    code = PROGRAM.format(
        root=str(ROOT),
        tests=str(ROOT / "tests"),
        asked=asked,
        arguments=list(arguments),
        trace=wheels / "touched",
    )
    python = environment / "bin" / "python"
    variables = {"PATH": os.defpath, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "HOME": str(wheels)}
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, env=variables, timeout=120)


def test_what_is_missing_is_installed_and_the_second_diagnosis_shows_what_is_left(
    environment: Path, wheels: Path
) -> None:
    make_wheel(wheels, "first_package")

    done = doctor(environment, wheels, "--fix", "--yes", "--no-torch", asked=[("first_package", "FAILURE")])

    before, _, after = done.stdout.partition("\nremaining findings:")
    assert f"$ {environment}/bin/python -m pip install first_package" in before
    assert "Successfully installed first" in before
    assert "first_package is not installed" not in after
    assert "warning: the fact of system.x" in after
    assert done.returncode == 0, done.stderr
    assert not (wheels / "touched").exists()


def test_the_first_command_that_fails_is_the_last(environment: Path, wheels: Path) -> None:
    make_wheel(wheels, "third_package")

    done = doctor(
        environment,
        wheels,
        "--fix",
        "--yes",
        asked=[("second_package", "WARNING"), ("third_package", "WARNING")],
    )

    before, _, after = done.stdout.partition("\nremaining findings:")
    assert "pip install second_package" in before
    assert "$ " in before
    assert "pip install third_package" not in before
    assert "exit code 1" in done.stderr
    assert "third_package is not installed" in after
    assert done.returncode == 1


def test_without_yes_the_script_is_printed_and_nothing_is_run(environment: Path, wheels: Path) -> None:
    make_wheel(wheels, "fourth_package")

    done = doctor(environment, wheels, "--fix", asked=[("fourth_package", "FAILURE")])

    assert done.stdout.splitlines() == [
        "# touch it",
        f"touch {wheels}/touched",
        "# install fourth_package",
        f"{environment}/bin/python -m pip install fourth_package",
    ]
    assert done.returncode == 1
    assert not (wheels / "touched").exists()


def test_where_nothing_can_be_run_the_report_says_what_is_left_to_do(environment: Path, wheels: Path) -> None:
    done = doctor(environment, wheels, "--fix", "--yes", asked=[])

    assert done.stdout.startswith("nothing to run")
    assert f"touch {wheels}/touched" in done.stdout
    assert not (wheels / "touched").exists()
    assert done.returncode == 0


def test_a_machine_with_nothing_to_fix_gets_an_empty_script(capsys: pytest.CaptureFixture[str]) -> None:
    fine = (check("fine", finding("fine.x", Severity.OK)),)

    assert run(["--fix", "--hardware", str(RECORDINGS / "h200.json")], "doctor", fine) == 0
    assert capsys.readouterr().out == "# nothing to fix\n"


def test_the_systems_python_is_never_changed() -> None:
    with pytest.raises(UsageError, match="`--yes`") as caught:
        refuse_system_python({}, prefix=sys.base_prefix)

    assert caught.value.exit_code == 2
    assert "python3 -m venv" in (caught.value.hint or "")


def test_a_conda_environment_may_be_changed(tmp_path: Path) -> None:
    refuse_system_python({"CONDA_PREFIX": sys.base_prefix}, prefix=sys.base_prefix)


@pytest.mark.parametrize(
    "fix",
    [
        Fix(remedy=remedy(Step.DRIVER, "PY -m pip install a"), findings=()),
        Fix(remedy=remedy(Step.SYSTEM, "PY -m pip install a"), findings=()),
        Fix(remedy=remedy(Step.SHELL, "PY -m pip install a"), findings=()),
        Fix(remedy=remedy(Step.PYTHON, "PY -m venv .venv"), findings=()),
        Fix(remedy=remedy(Step.PACKAGE, "/usr/bin/python3 -m pip install a"), findings=()),
        Fix(remedy=remedy(Step.PACKAGE, "pip install a"), findings=()),
        Fix(remedy=remedy(Step.PACKAGE, "sudo PY -m pip install a"), findings=()),
        Fix(remedy=remedy(Step.PACKAGE, "PY -m pip download a"), findings=()),
        Fix(remedy=remedy(Step.PACKAGE, "PY -m pip"), findings=()),
        Fix(remedy=remedy(Step.PACKAGE, "PY -c 'import os'"), findings=()),
        Fix(remedy=remedy(Step.PACKAGE, "PY -m pip install a && rm -r b"), findings=()),
        Fix(remedy=remedy(Step.PACKAGE, "PY -m pip install $NAME"), findings=()),
        Fix(remedy=remedy(Step.PACKAGE, "PY -m pip install `name`"), findings=()),
        Fix(remedy=remedy(Step.PACKAGE, "PY -m pip install a>b"), findings=()),
        Fix(remedy=remedy(Step.PACKAGE, "PY -m pip install 'a"), findings=()),
        Fix(remedy=remedy(Step.TORCH, "export CUDA_VISIBLE_DEVICES="), findings=()),
        Fix(remedy=remedy(Step.PACKAGE, "PY -m pip install NAME", certainty=Certainty.PLACEHOLDER), findings=()),
        Fix(remedy=remedy(Step.PACKAGE, "PY -m pip install a", certainty=Certainty.UNCERTAIN), findings=()),
        Fix(remedy=remedy(Step.PACKAGE, "PY -m pip install a"), findings=(), elsewhere="the host"),
    ],
    ids=lambda fix: f"{fix.remedy.step.name}: {fix.remedy.commands[0]}",
)
def test_nothing_else_is_run(fix: Fix) -> None:
    assert runnable([fix], python="PY") == []


def test_pips_part_of_the_torch_and_package_steps_is_run_as_words() -> None:
    fixes = [
        Fix(remedy=remedy(Step.TORCH, "PY -m pip uninstall --yes torch", "PY -m pip install torch==2.9"), findings=()),
        Fix(remedy=remedy(Step.PACKAGE, "PY -m pip install 'transformers>=5.5'"), findings=()),
    ]

    assert runnable(fixes, python="PY") == [
        ["PY", "-m", "pip", "uninstall", "--yes", "torch"],
        ["PY", "-m", "pip", "install", "torch==2.9"],
        ["PY", "-m", "pip", "install", "transformers>=5.5"],
    ]


def test_a_command_for_a_shell_has_no_plain_words() -> None:
    assert split_plain("python -m pip install a; reboot") == []
    assert split_plain("'/my env/bin/python' -m pip list") == ["/my env/bin/python", "-m", "pip", "list"]


def test_commands_stop_at_the_first_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    commands = [[sys.executable, "-c", f"import sys; print('ran {code}'); sys.exit({code})"] for code in (0, 3, 0)]

    assert run_all(commands, {}) is False

    shown = capfd.readouterr()
    assert [line for line in shown.out.splitlines() if line.startswith("ran")] == ["ran 0", "ran 3"]
    assert "exit code 3" in shown.err
