"""The doctor's command line: both entry points, usage errors, and a checkout with nothing installed."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.doctor import RECORDINGS, ROOT, check, finding, missing, remedy

from rl_compat.cli.app import main as rlc
from rl_compat.doctor.command import main, run
from rl_compat.doctor.diagnosis import diagnose
from rl_compat.doctor.findings import Check, Needs, Severity, Step
from rl_compat.doctor.options import parse
from rl_compat.doctor.report.as_json import as_json
from rl_compat.doctor.table import CHECKS
from rl_compat.errors import UsageError

H200 = str(RECORDINGS / "h200.json")
FINE = check("fine", finding("fine.as_it_is", Severity.OK))
WORTH_A_WARNING = check("odd", finding("odd.so", Severity.WARNING))
BROKEN = check("broken", finding("broken.so", Severity.FAILURE, remedy(Step.SHELL, "unset A")))


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with nothing installed."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


def doctor(python: Path | str, *arguments: str, cwd: Path = ROOT, isolated: bool = True) -> subprocess.CompletedProcess:
    flags = ["-I", "-S"] if isolated else []
    environment = {"PATH": os.defpath, "HOME": str(cwd), "LANG": "C.UTF-8"}
    return subprocess.run(
        [str(python), *flags, str(ROOT / "doctor"), *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("checks", "code"), [((FINE,), 0), ((FINE, WORTH_A_WARNING), 0), ((FINE, WORTH_A_WARNING, BROKEN), 1)]
)
def test_only_a_failure_makes_the_exit_code_one(
    checks: tuple[Check, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--hardware", H200], "doctor", checks) == code
    assert f"{len(checks)} check" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "fact", "hint"),
    [
        (["--jsn"], "`--jsn`", "did you mean `--json`"),
        (["--only", "driver,zzz"], "`zzz`", "`--list` shows them"),
        (["train.log"], "`train.log`", "did you mean `doctor explain train.log`"),
        (["--torch-timeout", "soon"], "`--torch-timeout`: `soon`", "doctor --help"),
        (["--torch-timeout", "-1"], "`-1`", "doctor --help"),
        (["--network-timeout", "nan"], "`nan`", "doctor --help"),
        (["--only"], "`--only`", "doctor --help"),
        (["--yes"], "`--yes` needs `--fix`", "`--fix --yes`"),
        (["--fix", "--yes", "--hardware", H200], f"`{H200}`", "`--hardware`"),
        (["--fix", "--json"], "`--json`", "`commands`"),
        (["--run", "runs/x"], "`--run` needs `--bundle`", "--bundle OUT.zip"),
        (["--hardware", "missing.json"], "`missing.json`", "rlc probe"),
        (["--hardware", str(ROOT / "README.md")], "README.md", "rlc probe"),
    ],
)
def test_a_wrong_request_is_refused_with_a_fact_and_a_hint(
    arguments: list[str], fact: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(arguments, program="doctor")

    shown = capsys.readouterr()
    assert (code, shown.out) == (2, "")
    error, _, hinted = shown.err.partition("\nhint: ")
    assert error.startswith("error: ")
    assert fact in error
    assert hint in hinted


def test_an_unknown_check_gets_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    known = CHECKS[0].id

    assert main(["--only", f"{known}x"], program="doctor") == 2
    assert f"hint: did you mean `{known}`" in capsys.readouterr().err


def test_checks_are_listed_and_chosen_by_id(capsys: pytest.CaptureFixture[str]) -> None:
    checks = (FINE, WORTH_A_WARNING, BROKEN)

    assert run(["--list", "--only", "odd,fine", "--only", "odd"], "doctor", checks) == 0

    assert capsys.readouterr().out == "fine  what of fine?\nodd   what of odd?\n"


def test_what_only_some_checks_say_has_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--hardware", H200, "--only", "odd", "--json"], "doctor", (FINE, WORTH_A_WARNING))

    shown = json.loads(capsys.readouterr().out)
    assert (shown["verdict"], [item["id"] for item in shown["checks"]]) == (None, ["odd"])


def test_checks_that_need_what_is_left_alone_are_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    checks = (FINE, check("torchy", needs=Needs.TORCH), check("far", needs=Needs.NETWORK))

    assert run(["--no-torch", "--no-network", "--json"], "doctor", checks) == 0

    shown = json.loads(capsys.readouterr().out)
    assert [item["skipped"] for item in shown["checks"]] == [None, "--no-torch", "--no-network"]
    assert shown["hardware"]["software"]["torch"] is None
    with pytest.raises(UsageError, match="`--only torchy` and `--no-torch`"):
        run(["--no-torch", "--only", "torchy"], "doctor", checks)


def test_a_recording_answers_every_check_whatever_this_machine_may_not_be_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    checks = (check("torchy", finding("torchy.x", Severity.OK), needs=Needs.TORCH),)

    run(["--hardware", H200, "--no-torch", "--json"], "doctor", checks)

    assert json.loads(capsys.readouterr().out)["checks"][0]["skipped"] is None


def test_a_checkout_is_diagnosed_by_a_python_with_nothing_installed(bare_python: Path, tmp_path: Path) -> None:
    """A-ENV: the first thing that a user runs, from anywhere, before anything works."""
    done = doctor(bare_python, "--json", "--no-network", cwd=tmp_path)

    shown = json.loads(done.stdout)
    asked = {item["id"] for item in shown["checks"] if item["skipped"] is None}
    assert asked == {item.id for item in CHECKS if Needs.NETWORK not in item.needs}
    assert [item["id"] for item in shown["findings"] if item["id"].endswith(".broken")] == []
    assert done.returncode == 1
    assert shown["hardware"]["software"]["packages"].get("torch") is None
    assert shown["once_fixed"]["torch"]
    assert (done.stderr, shown["hardware"]["software"]["python"]) == ("", ".".join(map(str, sys.version_info[:3])))


def test_a_bare_checkout_needs_the_standard_library_alone(bare_python: Path) -> None:
    code = f"""
import runpy, sys
sys.argv = ["doctor", "--json", "--no-network"]
try:
    runpy.run_path({str(ROOT / "doctor")!r}, run_name="__main__")
except SystemExit:
    pass
foreign = {{"pynvml", "psutil", "torch", "rich", "typer", "numpy"}}
homes = ({str(ROOT)!r}, sys.base_prefix, "/usr/lib/python")
files = {{name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}}
strange = [name for name, file in files.items() if file and not file.startswith(homes)]
print([*strange, *(foreign & set(sys.modules))], file=sys.stderr)
"""
    done = subprocess.run([str(bare_python), "-I", "-S", "-c", code], capture_output=True, text=True, timeout=120)

    assert done.stderr.strip() == "[]"


def test_the_folder_may_stand_before_the_standard_library(bare_python: Path) -> None:
    """`python3 doctor` puts the folder first on the path, where `types.py` would hide Python's own."""
    assert doctor(bare_python, "--list", isolated=True).returncode == 0
    assert doctor(bare_python, "--list", isolated=False).returncode == 0
    clashes = {path.stem for path in (ROOT / "doctor").iterdir()} & sys.stdlib_module_names
    assert clashes == {"types", "__main__"} & clashes


def test_a_copy_without_symbolic_links_works_too(bare_python: Path, tmp_path: Path) -> None:
    for name in ("rl_compat", "doctor", "profiles"):
        ignored = shutil.ignore_patterns("__pycache__", *(("doctor", "profiles") if name == "rl_compat" else ()))
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("doctor", "profiles"):
        (tmp_path / "rl_compat" / name).write_text(f"../{name}")

    command = [str(bare_python), str(tmp_path / "doctor"), "--no-network", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)

    assert (json.loads(done.stdout)["hardware"]["software"]["packages"].get("torch"), done.returncode) == (None, 1)


def test_a_recording_needs_a_package_that_the_error_names(bare_python: Path) -> None:
    done = doctor(bare_python, "--hardware", H200)

    assert done.returncode == 2
    assert "pip install 'pydantic" in done.stderr


def test_the_entry_can_be_read_by_pythons_that_cannot_run_the_rest() -> None:
    source = (ROOT / "doctor" / "__main__.py").read_text()

    assert ast.parse(source, feature_version=(3, 6))


def old_python(version: str) -> str | None:
    """A Python of that version, on the path or among pyenv's."""
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for python in (f"python{version}", *map(str, of_pyenv)):
        with contextlib.suppress(OSError):
            if subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
                return python
    return None


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8", "3.9", "3.10"])
def test_an_old_python_is_a_finding(version: str, tmp_path: Path) -> None:
    """A-ENV: not a SyntaxError."""
    python = old_python(version)
    if python is None:
        pytest.skip(f"no Python {version} is here")

    command, alone = [python, str(ROOT / "doctor")], {"PATH": str(tmp_path)}
    as_text = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=alone)
    as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, cwd=tmp_path, env=alone)

    assert (as_text.returncode, as_text.stderr, as_json.returncode) == (1, "", 1)
    assert as_text.stdout.startswith("failure: ")
    assert not missing(as_text.stdout, f"Python {version}.", "3.11")
    assert "uv" in as_text.stdout
    shown = json.loads(as_json.stdout)
    assert (shown["schema"], shown["findings"][0]["severity"]) == ("rlc.doctor/2", "failure")
    assert shape_of(shown) == shape_of(report_of(BROKEN))


def report_of(broken: Check) -> dict[str, Any]:
    """The report of a Python that is new enough."""
    options = parse(["--hardware", H200, "--only", broken.id], "doctor")
    report: dict[str, Any] = json.loads(json.dumps(as_json(diagnose(options, [broken]))))
    return report


def shape_of(report: dict[str, Any]) -> list[list[str]]:
    worst = report["findings"][0]
    return [list(report), list(report["counts"]), list(worst), list(worst["remedies"][0])]


def test_a_bundle_is_written_beside_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bundle.zip"

    assert run(["--bundle", str(file), "--hardware", H200], "doctor", [FINE]) == 0

    shown = capsys.readouterr()
    assert shown.out.startswith("training works here: NVIDIA H200")
    assert f"wrote `{file}`:" in shown.err
    with zipfile.ZipFile(file) as bundle:
        assert json.loads(bundle.read("findings.json"))["schema"] == "rlc.doctor/2"
        assert b"ok: the fact of fine.as_it_is" in bundle.read("report.txt")


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["--bundle", "there.zip"], "exists"),
        (["--bundle", "nowhere/out.zip"], "`nowhere`"),
        (["--bundle", "out.zip", "--run", "odd"], "`odd`"),
    ],
)
def test_a_bundle_that_cannot_be_is_refused_before_the_machine_is_looked_at(
    arguments: list[str], fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.zip").touch()
    asked = []
    curious = Check(id="curious", question="asked?", run=lambda hardware: asked.append(hardware) or ())

    with pytest.raises(UsageError, match=fact):
        run([*arguments, "--hardware", H200], "doctor", [curious])

    assert asked == []


def test_both_entrances_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    first = main(["--hardware", H200, "--all"])
    of_the_checkout = capsys.readouterr()
    second = rlc(["doctor", "--hardware", H200, "--all"])
    of_the_command = capsys.readouterr()

    assert first == second == 0
    assert of_the_checkout.out.splitlines()[:-1] == of_the_command.out.splitlines()[:-1]


def test_help_names_the_exit_codes_and_the_program_that_was_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"], program="python3 doctor") == 0

    shown = capsys.readouterr().out
    assert shown.startswith("Usage: python3 doctor [OPTION]...")
    assert "python3 doctor explain error.log" in shown
    assert "exit codes: 0 " in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_the_checks_that_help_names_exist(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    named = re.search(r"--only (\S+)  ", capsys.readouterr().out.partition("examples:")[2])

    assert named is not None
    assert set(named.group(1).split(",")) <= {check.id for check in CHECKS}


def _cpu_seconds_of(call: Callable[[], object]) -> float:
    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    before = used()
    call()
    return used() - before


def test_a_healthy_machine_takes_as_long_as_starting_some_interpreters_without_torch(bare_python: Path) -> None:
    start = [str(bare_python), "-c", "import json, subprocess, importlib.metadata"]
    alone = min(_cpu_seconds_of(lambda: subprocess.run(start, check=True)) for _ in range(2))
    examining = min(_cpu_seconds_of(lambda: doctor(bare_python, "--no-torch", "--no-network")) for _ in range(2))

    assert examining < 25 * alone


def test_a_closed_pipe_is_no_traceback(bare_python: Path) -> None:
    command = f"{bare_python} {ROOT / 'doctor'} --no-network --json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr) == ("{\n", "")


def test_an_interrupt_ends_it_without_a_traceback() -> None:
    def interrupt(hardware: object) -> tuple[()]:
        raise KeyboardInterrupt

    checks = (Check(id="slow", question="how long?", run=interrupt),)

    assert main(["--hardware", H200], program="doctor", checks=checks) == 130
