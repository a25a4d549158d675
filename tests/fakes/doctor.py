"""Recorded machines, and findings and checks made by hand, for tests of the doctor."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step, Sureness
from rl_compat.hardware.recording import load_recording
from rl_compat.hardware.types import Hardware

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests" / "recordings"


def machine(name: str) -> Hardware:
    return load_recording(RECORDINGS / f"{name}.json")


def finding(
    id: str, severity: Severity, *remedies: Remedy, what: str = "", why: str = "", where: tuple[str, ...] = ()
) -> Finding:
    return Finding(id=id, severity=severity, what=what or f"the fact of {id}", why=why, where=where, remedies=remedies)


def remedy(step: Step, *commands: str, what: str = "mend it", sure: Sureness = Sureness.PASTE) -> Remedy:
    return Remedy(what=what, step=step, commands=commands, sure=sure)


def check(id: str, *findings: Finding, needs_torch: bool = False, needs_network: bool = False) -> Check:
    """A check that finds the same everywhere."""

    def run(hardware: Hardware) -> Iterable[Finding]:
        return findings

    return Check(id=id, question=f"what of {id}?", run=run, needs_torch=needs_torch, needs_network=needs_network)
