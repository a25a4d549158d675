"""The block of commands: one remedy for each finding, in order, without contradictions, and safe to paste."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest
from fakes.doctor import RECORDINGS, finding, machine, remedy

from rl_compat.doctor.diagnosis import run_checks
from rl_compat.doctor.findings import Certainty, Finding, Remedy, Severity, Step
from rl_compat.doctor.fix import plan_fixes, script
from rl_compat.doctor.remedies import install_torch, new_environment, pip
from rl_compat.doctor.table import CHECKS
from rl_compat.hardware.types import Hardware

P40 = machine("p40_cu128_wheel")
PYTHON = P40.software.executable or "python"
OLD_TORCH = remedy(Step.TORCH, pip(P40, "install", "torch==2.7.1+cu118"), what="install an older torch")


def block(*findings: Finding, hardware: Hardware = P40) -> list[str]:
    return list(script(plan_fixes(findings, hardware)))


def failure(id: str, *remedies: Remedy) -> Finding:
    return finding(id, Severity.FAILURE, *remedies)


def warning(id: str, *remedies: Remedy) -> Finding:
    return finding(id, Severity.WARNING, *remedies)


def test_each_command_stands_below_a_comment_that_says_what_it_does() -> None:
    lines = block(warning("a.b", remedy(Step.SHELL, "unset A", "unset B", what="forget both")))

    assert lines == ["# forget both", "unset A", "unset B"]


def test_remedies_come_in_the_order_of_their_steps_whatever_the_severity() -> None:
    steps = [Step.SETTING, Step.PACKAGE, Step.TORCH, Step.PYTHON, Step.SHELL, Step.CONTAINER, Step.SYSTEM, Step.DRIVER]
    findings = [
        finding(f"{step.name}.x", severity, remedy(step, f"echo {step.name}"))
        for step, severity in zip(steps, [Severity.FAILURE, Severity.WARNING] * 4, strict=True)
    ]

    commands = [line for line in block(*findings) if not line.startswith("#")]

    assert commands == [f"echo {step.name}" for step in Step]


def test_notes_and_what_is_fine_get_no_fix() -> None:
    assert block(finding("a.b", Severity.NOTE, OLD_TORCH), finding("c.d", Severity.OK, OLD_TORCH)) == []


def test_what_two_findings_ask_for_is_done_once() -> None:
    same = remedy(Step.SHELL, "unset LD_LIBRARY_PATH")
    fixes = plan_fixes([warning("a.b", same), failure("c.d", same)], P40)

    assert [fix.findings for fix in fixes] == [("c.d", "a.b")]


def test_only_the_first_remedy_of_a_finding_is_taken() -> None:
    lines = block(failure("a.b", remedy(Step.SHELL, "first"), remedy(Step.SHELL, "second")))

    assert lines == ["# fix it", "first"]


def test_several_builds_of_torch_become_the_one_that_suits_card_driver_and_python() -> None:
    """A-ENV-01: a P40 gets CUDA 12.6 whatever else is requested."""
    newer = remedy(Step.TORCH, pip(P40, "install", "torch==2.15.0+cu132"))

    lines = block(failure("a.b", OLD_TORCH), warning("c.d", newer))

    commands = [line for line in lines if not line.startswith("#")]
    assert commands == list(install_torch(P40).commands)
    assert "torch==2.14.1+cu126" in commands[0]


def test_another_torch_is_preferred_to_a_new_driver_since_it_needs_no_root() -> None:
    driver = remedy(Step.DRIVER, "sudo apt-get install nvidia-driver-580", what="get a newer driver")

    assert block(failure("a.b", driver, OLD_TORCH)) == ["# install an older torch", *OLD_TORCH.commands]
    assert block(failure("a.b", driver)) == ["# get a newer driver", *driver.commands]


def test_what_was_installed_wrongly_is_taken_out_before_the_right_one_is_put_in() -> None:
    out = remedy(Step.TORCH, f"{PYTHON} -m pip uninstall --yes torch", what="take it out")

    lines = block(failure("a.b", OLD_TORCH), warning("c.d", out))

    assert [line for line in lines if not line.startswith("#")] == [*out.commands, *OLD_TORCH.commands]


def test_packages_go_into_the_new_environment_and_not_into_the_python_that_it_replaces() -> None:
    package = remedy(Step.PACKAGE, pip(P40, "install", "transformers>=5.5"))

    lines = block(failure("a.b", new_environment(P40)), failure("c.d", OLD_TORCH), warning("e.f", package))

    assert [line for line in lines if not line.startswith("#")] == [
        f"{PYTHON} -m venv .venv",
        ".venv/bin/python -m pip install torch==2.7.1+cu118",
        ".venv/bin/python -m pip install 'transformers>=5.5'",
    ]


def test_another_python_brings_its_torch_and_no_second_one_is_installed() -> None:
    python = remedy(Step.PYTHON, "python3.12 -m venv .venv", ".venv/bin/python -m pip install torch==2.14.1+cu126")

    lines = block(failure("a.b", OLD_TORCH), failure("c.d", python))

    assert [line for line in lines if not line.startswith("#")] == list(python.commands)


def test_another_python_gets_this_project_once_whoever_asks_for_it() -> None:
    base = machine("p40_python_3_15")
    without = {name: version for name, version in base.software.packages.items() if name != "transformers"}
    bare = replace(base, software=replace(base.software, packages=without))
    findings = [finding for result in run_checks(CHECKS, bare) for finding in result.findings]

    fixes = plan_fixes(findings, bare)

    assert [line for line in script(fixes) if not line.startswith("#")] == [
        "python3.14 -m venv .venv",
        ".venv/bin/python -m pip install --index-url https://download.pytorch.org/whl/cu126 torch==2.14.1+cu126",
        ".venv/bin/python -m pip install -e .",
    ]
    assert fixes[0].findings == ("python.outside_wheels", "torch.missing", "required_packages.missing")


def test_the_quickstart_stands_for_all_that_it_installs() -> None:
    whole = remedy(Step.PYTHON, "scripts/quickstart.sh", what="make an environment with everything")
    other = remedy(Step.SHELL, "unset A")

    fixes = plan_fixes(
        [failure("a.b", OLD_TORCH), failure("c.d", whole), warning("e.f", new_environment(P40)), warning("g.h", other)],
        P40,
    )

    assert [(fix.remedy.commands, fix.findings) for fix in fixes] == [
        (("unset A",), ("g.h",)),
        (("scripts/quickstart.sh",), ("a.b", "c.d", "e.f")),
    ]


@pytest.mark.parametrize(
    ("certainty", "command", "line", "words"),
    [
        (Certainty.PLACEHOLDER, "export HF_ENDPOINT=MIRROR", "#   export HF_ENDPOINT=MIRROR", "fill in the part"),
        (Certainty.UNCERTAIN, "sudo apt-get install x", "#   sudo apt-get install x", "may be wrong here"),
        (Certainty.UNCERTAIN, "python3.12 -m venv .venv", "python3.12 -m venv .venv", "may be wrong here"),
        (Certainty.READY, "sudo modprobe nvidia", "sudo modprobe nvidia", ""),
    ],
)
def test_what_is_not_certain_is_marked_and_does_not_run_as_root(
    certainty: Certainty, command: str, line: str, words: str
) -> None:
    comment, command_line = block(warning("a.b", remedy(Step.SYSTEM, command, certainty=certainty)))

    assert command_line == line
    assert words in comment


def test_inside_of_a_container_the_host_is_fixed_elsewhere() -> None:
    inside = replace(P40, host=replace(P40.host, container="docker"))
    driver = remedy(Step.DRIVER, "sudo apt-get install nvidia-driver-580", what="get a driver")

    lines = block(failure("a.b", driver), warning("c.d", remedy(Step.SHELL, "unset A")), hardware=inside)

    assert lines == [
        "# on the host: get a driver",
        "#   sudo apt-get install nvidia-driver-580",
        "# fix it",
        "unset A",
    ]


def test_under_wsl_the_driver_is_updated_in_windows() -> None:
    windows = replace(P40, host=replace(P40.host, wsl=True))

    lines = block(failure("a.b", remedy(Step.DRIVER, "winget upgrade x", what="get a driver")), hardware=windows)

    assert lines == ["# on Windows: get a driver", "#   winget upgrade x"]


def test_advice_without_commands_is_a_comment_and_long_ones_are_wrapped() -> None:
    lines = block(warning("a.b", remedy(Step.SYSTEM, what="close other programs " * 20)))

    assert len(lines) > 3
    assert all(line.startswith("# ") and len(line) <= 98 for line in lines)


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.json")), ids=lambda path: path.stem)
def test_the_block_of_every_recording_is_a_shell_script_with_one_torch(path) -> None:
    hardware = machine(path.stem)
    findings = [finding for result in run_checks(CHECKS, hardware) for finding in result.findings]

    lines = block(*findings, hardware=hardware)

    text = "\n".join(lines)
    shell = shutil.which("sh")
    assert shell is not None
    if text:
        assert subprocess.run([shell, "-n"], input=text, capture_output=True, text=True).stderr == ""
    assert len({line for line in lines if " pip install " in line and " torch==" in line and line[0] != "#"}) <= 1
    assert not (hardware.host.wsl and any("nvidia-driver" in line for line in lines if line[0] != "#"))
