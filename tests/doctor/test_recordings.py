"""Each recorded machine gets exactly the findings of `expected.toml`, its profile, and commands that suit it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from recordings.compose import RECORDINGS

from rl_compat.doctor.diagnosis import Diagnosis, diagnose
from rl_compat.doctor.findings import Finding, Severity
from rl_compat.doctor.fix import script
from rl_compat.doctor.options import parse
from rl_compat.doctor.report.paper import Paper
from rl_compat.doctor.report.screen import render
from rl_compat.doctor.table import CHECKS
from rl_compat.errors import HardwareError
from rl_compat.hardware.types import Hardware
from rl_compat.planning.profile import match_profile

FOLDER = Path(__file__).parents[1] / "recordings"
EXPECTED: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("expected.toml").read_text())
FIELDS = {"cases", "profile", "exit", "failures", "warnings", "notes", "commands", "never"}
SEVERITIES = {"failures": Severity.FAILURE, "warnings": Severity.WARNING, "notes": Severity.NOTE}
WHAT_IT_IS = {"gpu.none", "precision.bf16_emulated", "precision.fp16_collapses", "kernels.off", "container.ephemeral"}
"notes that every such machine has"
HEALTHY = sorted(name for name, row in EXPECTED.items() if not row.get("failures") and not row.get("warnings"))


@cache
def diagnosis(name: str) -> Diagnosis:
    options = parse(["--hardware", str(FOLDER / f"{name}.json")], "rlc doctor")
    return diagnose(options, CHECKS)


def findings(name: str) -> tuple[Finding, ...]:
    return diagnosis(name).findings


def block(name: str) -> str:
    """The block of commands, comments included."""
    return "\n".join(script(diagnosis(name).fixes))


def ids(name: str, severity: Severity) -> set[str]:
    return {finding.id for finding in findings(name) if finding.severity is severity}


def test_every_recording_has_its_expectation_and_no_other_has_one() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(RECORDINGS) == set(EXPECTED)


def test_expectations_are_spelled_as_the_table_says() -> None:
    for name, row in EXPECTED.items():
        assert set(row) <= FIELDS, name
        assert row.get("exit", 0) == int(bool(row.get("failures"))), name
        for severity in SEVERITIES:
            assert row.get(severity, []) == sorted(set(row.get(severity, []))), name


def test_every_public_case_of_an_environment_is_recorded() -> None:
    recorded = {case for row in EXPECTED.values() for case in row.get("cases", ())}
    assert {f"A-ENV-{number:02}" for number in range(1, 16)} <= recorded


@pytest.mark.parametrize("name", EXPECTED)
def test_a_machine_gets_exactly_these_findings(name: str) -> None:
    found = {kind: sorted(ids(name, severity)) for kind, severity in SEVERITIES.items()}
    assert found == {kind: EXPECTED[name].get(kind, []) for kind in SEVERITIES}


def test_no_check_breaks_and_each_finding_is_named_after_its_check() -> None:
    for name in EXPECTED:
        for result in diagnosis(name).results:
            for finding in result.findings:
                assert finding.id.startswith(f"{result.check.id}."), name
                assert not finding.id.endswith(".broken"), f"{name}: {finding.what}"


def test_the_profile_is_the_one_for_the_device_of_a_run() -> None:
    assert {name: profile_of(diagnosis(name).hardware) for name in EXPECTED} == {
        name: row["profile"] for name, row in EXPECTED.items()
    }


def profile_of(hardware: Hardware) -> str:
    try:
        return match_profile(replace(hardware, devices=hardware.devices[:1]))[0].name
    except HardwareError:
        return "none"


@pytest.mark.parametrize("name", EXPECTED)
def test_the_verdict_the_exit_code_and_the_findings_say_the_same(name: str) -> None:
    found, wanted = diagnosis(name), EXPECTED[name]
    assert found.exit_code == wanted.get("exit", 0)
    assert found.verdict is not None
    assert found.verdict.works is (found.exit_code == 0), found.verdict.problem
    if found.verdict.works:
        assert found.verdict.profile == wanted["profile"]
    else:
        assert found.once_fixed is not None
        assert found.once_fixed.works


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_fits_one_screen_and_is_told_to_change_nothing(name: str) -> None:
    notes = ids(name, Severity.NOTE)
    assert len(notes & WHAT_IT_IS) <= 2
    assert len(notes) <= 3
    assert len(render(diagnosis(name), Paper())) <= 30
    assert block(name) == ""


@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in HEALTHY])
def test_the_block_of_commands_contains_the_expected_parts_and_no_forbidden_ones(name: str) -> None:
    text = block(name)
    assert [part for part in EXPECTED[name].get("commands", ()) if part not in text] == []
    assert [part for part in EXPECTED[name].get("never", ()) if part in text] == []


def test_what_is_wrong_says_why_it_matters_and_where_it_was_seen() -> None:
    for name, finding in ((it, finding) for it in EXPECTED for finding in findings(it)):
        place = f"{finding.id} on {name}"
        assert finding.what == finding.what.strip().rstrip("."), place
        if finding.severity >= Severity.WARNING:
            assert finding.why, place
            assert finding.where, place
            assert finding.affects, place
            assert finding.remedies or _elsewhere(name, finding), place


def _elsewhere(name: str, finding: Finding) -> bool:
    """Whether the finding points to a check that has the remedy."""
    pointed = re.search(r"the check `(\w+)`", finding.why)
    named = pointed.group(1) if pointed else ""
    return any(other.remedies for other in findings(name) if other.id.startswith(f"{named}."))


def test_old_cards_are_never_sent_to_cuda_13_and_windows_never_to_a_linux_driver() -> None:
    for name in EXPECTED:
        hardware = diagnosis(name).hardware
        weakest = hardware.weakest_capability()
        if weakest is not None and weakest < (7, 5):
            assert "+cu13" not in block(name), name
        if hardware.host.wsl:
            everything = block(name) + str([finding.remedies for finding in findings(name)])
            assert "apt" not in everything.replace("adapt", ""), name
