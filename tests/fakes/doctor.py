"""Recorded machines, and findings and checks made by hand, for tests of the doctor."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rl_compat.doctor.findings import Certainty, Check, Finding, Needs, Remedy, Severity, Step
from rl_compat.hardware.recording import load_recording
from rl_compat.hardware.types import Hardware

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests" / "recordings"


def machine(name: str) -> Hardware:
    return load_recording(RECORDINGS / f"{name}.json")


def missing(text: str, *values: str) -> list[str]:
    """The values that a text does not contain: tests assert values, paths and commands, not sentences."""
    return [value for value in values if value not in text]


def finding(
    id: str, severity: Severity, *remedies: Remedy, what: str = "", why: str = "", where: tuple[str, ...] = ()
) -> Finding:
    return Finding(id=id, severity=severity, what=what or f"the fact of {id}", why=why, where=where, remedies=remedies)


def remedy(step: Step, *commands: str, what: str = "fix it", certainty: Certainty = Certainty.READY) -> Remedy:
    return Remedy(what=what, step=step, commands=commands, certainty=certainty)


def check(id: str, *findings: Finding, needs: Needs = Needs.NOTHING) -> Check:
    """A check that finds the same everywhere."""

    def run(hardware: Hardware) -> Iterable[Finding]:
        return findings

    return Check(id=id, question=f"what of {id}?", run=run, needs=needs)
