"""The block of commands: one remedy for each finding, in order, without contradictions, and safe to paste."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.doctor import finding, machine, remedy

from rl_compat.doctor.findings import Certainty, Finding, Remedy, Severity, Step
from rl_compat.doctor.fix import Fix, plan_fixes, script
from rl_compat.doctor.remedies import pip
from rl_compat.hardware.types import Hardware

P40 = machine("p40_cu128_wheel")
PYTHON = P40.software.executable or "python"
OLD_TORCH = remedy(Step.TORCH, pip(P40, "install", "torch==2.7.1+cu118"), what="install an older torch")


def planned(*findings: Finding, hardware: Hardware = P40) -> tuple[Fix, ...]:
    """The fixes of findings that no remedy changes."""
    return plan_fixes(findings, hardware, lambda machine: findings)


def block(*findings: Finding, hardware: Hardware = P40) -> list[str]:
    return list(script(planned(*findings, hardware=hardware)))


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
    fixes = planned(warning("a.b", same), failure("c.d", same))

    assert [fix.findings for fix in fixes] == [("c.d", "a.b")]


def test_only_the_first_remedy_of_a_finding_is_taken() -> None:
    lines = block(failure("a.b", remedy(Step.SHELL, "first"), remedy(Step.SHELL, "second")))

    assert lines == ["# fix it", "first"]


def test_a_variable_or_package_is_set_once_by_the_worst_finding() -> None:
    newer = remedy(Step.TORCH, pip(P40, "install", "torch==2.15.0+cu132"))
    cards = [remedy(Step.SHELL, f"export CUDA_VISIBLE_DEVICES={index}") for index in (0, 1)]

    lines = block(warning("a.b", newer), failure("c.d", OLD_TORCH), warning("e.f", cards[0]), failure("g.h", cards[1]))

    assert [line for line in lines if not line.startswith("#")] == [*cards[1].commands, *OLD_TORCH.commands]


def test_another_torch_is_preferred_to_a_new_driver_since_it_needs_no_root() -> None:
    driver = remedy(Step.DRIVER, "sudo apt-get install nvidia-driver-580", what="get a newer driver")

    assert block(failure("a.b", driver, OLD_TORCH)) == ["# install an older torch", *OLD_TORCH.commands]
    assert block(failure("a.b", driver)) == ["# get a newer driver", *driver.commands]


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
