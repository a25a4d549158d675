"""A diagnosis as JSON.

`schema` is `rlc.doctor/1`: keys are only added while it stays 1. Severities are `ok`, `note`, `warning`, `failure`.
A Python that is too old to run the checks gives the same keys with one finding; `version` and `hardware` are null then.

    schema, version        of this form; of rl_compat
    exit_code              of the command: 1 when there is a failure
    seconds, torch_seconds of the diagnosis; of importing torch, null when it was not imported
    verdict                null with `--only`, else: works, problem, device, profile, summary, torch (the build that is
                           supposed instead of the installed one, or null), visible (false where cards are
                           supposed to answer that do not), reaches: for each method the largest model that fits:
                           method, settings (of `rlc train`), model, parameters, peak_bytes, available_bytes,
                           host_bytes, compute_dtype, rollout_engine, rollout_dtype, micro_batch_tokens,
                           problem (why nothing fits; then the ones before are null)
    once_mended            the same when the failures are mended; null where nothing fails or nothing helps
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
from rl_compat.doctor.findings import Check, CheckResult, Finding, Remedy, Severity
from rl_compat.doctor.mend import script
from rl_compat.doctor.verdict import Reach, Verdict
from rl_compat.hardware.recording import to_json
from rl_compat.planning.shapes.known import KNOWN_SHAPES

SCHEMA = "rlc.doctor/1"


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain dictionaries, lists, strings and numbers, in the form that this file describes."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "exit_code": diagnosis.exit_code,
        "seconds": round(diagnosis.seconds, 3),
        "torch_seconds": diagnosis.hardware.software.torch_seconds,
        "verdict": _verdict(diagnosis.verdict),
        "once_mended": _verdict(diagnosis.once_mended),
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


def _verdict(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "works": verdict.works,
        "problem": verdict.problem,
        "device": verdict.device,
        "profile": verdict.profile,
        "summary": verdict.summary,
        "torch": verdict.torch,
        "visible": verdict.visible,
        "reaches": [_reach(reach) for reach in verdict.reaches],
    }


def _reach(reach: Reach) -> dict[str, Any]:
    plan = reach.plan
    actor = plan.roles["actor"] if plan else None
    pool, rollout = (plan.pool_of("actor"), plan.rollout) if plan else (None, None)
    return {
        "method": reach.method,
        "settings": list(reach.settings),
        "model": reach.model,
        "parameters": KNOWN_SHAPES[reach.model].num_parameters if reach.model else None,
        "peak_bytes": pool.peak_bytes if pool else None,
        "available_bytes": pool.memory_available_bytes if pool else None,
        "host_bytes": pool.host_bytes if pool else None,
        "compute_dtype": actor.compute_dtype if actor else None,
        "rollout_engine": rollout.engine if rollout else None,
        "rollout_dtype": rollout.compute_dtype if rollout else None,
        "micro_batch_tokens": actor.max_tokens_per_micro_batch if actor else None,
        "problem": reach.problem,
    }


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
