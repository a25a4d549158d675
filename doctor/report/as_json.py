"""A diagnosis and an explanation as JSON.

`rlc.doctor/2`: keys are only added while the number stays the same. Severities are `ok`, `note`, `warning`, `failure`.
A Python that is too old to run the checks gives the same keys with one finding; `version` and `hardware` are then null.

    schema, version        of this form; of rl_compat
    exit_code              of the command: 1 if there is a failure
    seconds, torch_seconds of the diagnosis; of importing torch, null if it was not imported
    verdict                null with `--only`, else: works, problem, device, profile, summary, torch (the build assumed
                           instead of the installed one, or null), visible (false if the verdict assumes cards that
                           do not answer yet), methods: the largest model that each method can train: method,
                           settings (of `rlc train`), model, parameters, peak_bytes, available_bytes, host_bytes,
                           compute_dtype, rollout_engine, rollout_dtype, micro_batch_tokens,
                           problem (why no model fits; the keys before it are then null)
    once_fixed             the verdict once the failures are fixed; null if nothing fails or nothing helps
    counts                 number of findings by severity
    findings               worst first: id, severity, what, why, where, affects,
                           remedies (what, step, commands, certainty), best first
    checks                 in order: id, question, severity (null if skipped), findings (number), seconds,
                           skipped (the option that excludes it, or null)
    commands               the block that fixes the machine, line by line, with comments
    hardware               the recording that the checks used

`rlc.explain/2`:

    schema, version        of this form; of rl_compat
    exit_code              1 if a known fault was recognised, else 0
    source, lines          of the log; its number of lines
    causes                 the likeliest first: id, title, component, layer, severity, confidence, date, cause, sources,
                           lines (of each place shown: first, last, text), occurrences,
                           concerns_this_machine (`yes`, `unlikely`, `no`, `unknown`), why,
                           findings, checks_fine, remedies (what, step, commands, certainty),
                           consequences (id, title, severity, cause, lines, occurrences)
    unrecognised           if there is no known fault: lines that look like an error (number, text), last ones last
    nearest                known errors that resemble them: id, title, cause, line, score, shared
    collect                what to collect for a report
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_compat import __version__
from rl_compat.doctor.findings import Finding, Remedy, Severity
from rl_compat.doctor.fix import script
from rl_compat.hardware.recording import to_json
from rl_compat.planning.shapes.known import KNOWN_SHAPES

if TYPE_CHECKING:
    from rl_compat.doctor.diagnosis import Diagnosis
    from rl_compat.doctor.explain.explanation import Explained, LogExplanation
    from rl_compat.doctor.explain.matching import ErrorMatch
    from rl_compat.doctor.verdict import LargestModel, Verdict

SCHEMA = "rlc.doctor/2"
EXPLAIN_SCHEMA = "rlc.explain/2"


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain dictionaries, lists, strings and numbers in the form that this file describes."""
    checks = [
        _check(result.check.id, result.check.question, severity_name(result.severity))
        | {"findings": len(result.findings), "seconds": round(result.seconds, 6)}
        for result in diagnosis.results
    ]
    skipped = [_check(check.id, check.question, None) | {"skipped": option} for check, option in diagnosis.skipped]
    return {
        "schema": SCHEMA,
        "version": __version__,
        "exit_code": diagnosis.exit_code,
        "seconds": round(diagnosis.seconds, 3),
        "torch_seconds": diagnosis.hardware.software.torch_seconds,
        "verdict": _verdict(diagnosis.verdict),
        "once_fixed": _verdict(diagnosis.once_fixed),
        "counts": {severity_name(severity): count for severity, count in diagnosis.counts.items()},
        "findings": [
            _finding(finding)
            | {
                "where": list(finding.where),
                "affects": list(finding.affects),
                "remedies": [_remedy(remedy) for remedy in finding.remedies],
            }
            for finding in diagnosis.findings
        ],
        "checks": [*checks, *skipped],
        "commands": list(script(diagnosis.fixes)),
        "hardware": to_json(diagnosis.hardware),
    }


def explanation_as_json(explanation: LogExplanation) -> dict[str, Any]:
    return {
        "schema": EXPLAIN_SCHEMA,
        "version": __version__,
        "exit_code": explanation.exit_code,
        "source": explanation.source,
        "lines": explanation.num_lines,
        "causes": [_cause(explained) for explained in explanation.causes],
        "unrecognised": [{"number": line.number, "text": line.text} for line in explanation.unrecognised],
        "nearest": [
            {
                "id": candidate.error.id,
                "title": candidate.error.title,
                "cause": candidate.error.cause,
                "line": candidate.line.number,
                "score": round(candidate.score, 3),
                "shared": list(candidate.shared),
            }
            for candidate in explanation.nearest
        ],
        "collect": list(explanation.collect),
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
        "methods": [_method(largest) for largest in verdict.methods],
    }


def _method(largest: LargestModel) -> dict[str, Any]:
    plan = largest.plan
    actor = plan.roles["actor"] if plan else None
    pool, rollout = (plan.pool_of("actor"), plan.rollout) if plan else (None, None)
    return {
        "method": largest.method,
        "settings": list(largest.settings),
        "model": largest.model,
        "parameters": KNOWN_SHAPES[largest.model].num_parameters if largest.model else None,
        "peak_bytes": pool.peak_bytes if pool else None,
        "available_bytes": pool.memory_available_bytes if pool else None,
        "host_bytes": pool.host_bytes if pool else None,
        "compute_dtype": actor.compute_dtype if actor else None,
        "rollout_engine": rollout.engine if rollout else None,
        "rollout_dtype": rollout.compute_dtype if rollout else None,
        "micro_batch_tokens": actor.max_tokens_per_micro_batch if actor else None,
        "problem": largest.problem,
    }


def _check(id: str, question: str, severity: str | None) -> dict[str, Any]:
    return {"id": id, "question": question, "severity": severity, "findings": 0, "seconds": 0.0, "skipped": None}


def _finding(finding: Finding) -> dict[str, Any]:
    return {"id": finding.id, "severity": severity_name(finding.severity), "what": finding.what, "why": finding.why}


def _remedy(remedy: Remedy) -> dict[str, Any]:
    return {
        "what": remedy.what,
        "step": remedy.step.name.lower(),
        "commands": list(remedy.commands),
        "certainty": remedy.certainty.name.lower(),
    }


def _cause(explained: Explained) -> dict[str, Any]:
    error, advice = explained.cause.match.error, explained.advice
    return {
        **_match(explained.cause.match),
        "component": error.component,
        "layer": error.layer.id,
        "confidence": error.confidence,
        "date": error.date,
        "sources": list(error.sources),
        "concerns_this_machine": advice.concerns,
        "why": advice.why,
        "findings": [_finding(finding) for finding in advice.findings],
        "checks_fine": list(advice.fine),
        "remedies": [_remedy(remedy) for remedy in advice.remedies],
        "consequences": [_match(match) for match in explained.cause.consequences],
    }


def _match(match: ErrorMatch) -> dict[str, Any]:
    error = match.error
    return {
        "id": error.id,
        "title": error.title,
        "severity": error.severity,
        "cause": error.cause,
        "lines": [
            {"first": place.first, "last": place.last, "text": [line.text for line in place.matched]}
            for place in match.places
        ],
        "occurrences": match.count,
    }
