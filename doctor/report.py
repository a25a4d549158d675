"""A diagnosis as JSON.

`schema` is `rlc.doctor/1`: keys are only added while it stays 1. Severities are `ok`, `note`, `warning`, `failure`.

    schema, version        of this form; of rl_compat
    exit_code              of the command: 1 when there is a failure
    seconds, torch_seconds of the diagnosis; of importing torch, null when it was not imported
    verdict                null with `--only`, else as in `verdict_json`
    once_mended            the same after the block of commands, null when that changes nothing
    counts                 number of findings by severity
    findings               worst first: id, severity, what, why, where, affects,
                           remedies (what, step, commands, sure), best first
    checks                 in order: id, question, severity (null when left out), findings (number), seconds,
                           left_out (the option that left it out, or null)
    commands               the block that mends the machine, line by line, with comments
    hardware               the recording that the checks were asked about
"""

from __future__ import annotations

from typing import Any

from rl_compat import __version__
from rl_compat.doctor.diagnosis import Diagnosis
from rl_compat.doctor.mend import script
from rl_compat.doctor.types import Check, CheckResult, Finding, Remedy, Severity
from rl_compat.hardware.recording import to_json

SCHEMA = "rlc.doctor/1"


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain dictionaries, lists, strings and numbers, in the form that this file describes."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "exit_code": diagnosis.exit_code,
        "seconds": round(diagnosis.seconds, 3),
        "torch_seconds": diagnosis.hardware.software.torch_seconds,
        "counts": {severity_name(severity): count for severity, count in diagnosis.counts.items()},
        "findings": [_finding(finding) for finding in diagnosis.findings],
        "checks": [
            *(_check(result) for result in diagnosis.results),
            *(_left_out(check, option) for check, option in diagnosis.left_out),
        ],
        "commands": list(script(diagnosis.mending)),
        "hardware": to_json(diagnosis.hardware),
    }


def severity_name(severity: Severity) -> str:
    return severity.name.lower()


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "severity": severity_name(finding.severity),
        "what": finding.what,
        "why": finding.why,
        "where": list(finding.where),
        "affects": list(finding.affects),
        "remedies": [_remedy(remedy) for remedy in finding.remedies],
    }


def _remedy(remedy: Remedy) -> dict[str, Any]:
    return {
        "what": remedy.what,
        "step": remedy.step.name.lower(),
        "commands": list(remedy.commands),
        "sure": remedy.sure.name.lower(),
    }


def _check(result: CheckResult) -> dict[str, Any]:
    return {
        "id": result.check.id,
        "question": result.check.question,
        "severity": severity_name(result.severity),
        "findings": len(result.findings),
        "seconds": round(result.seconds, 6),
        "left_out": None,
    }


def _left_out(check: Check, option: str) -> dict[str, Any]:
    return {
        "id": check.id,
        "question": check.question,
        "severity": None,
        "findings": 0,
        "seconds": 0.0,
        "left_out": option,
    }
