"""A diagnosis and an explanation as JSON, in the forms that docs/doctor.md describes."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from rl_compat import __version__
from rl_compat.doctor.findings import Severity
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
    """Plain dictionaries, lists, strings and numbers, `rlc.doctor/2`."""
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
        "findings": _plain(diagnosis.findings),
        "checks": [*checks, *skipped],
        "commands": list(script(diagnosis.fixes)),
        "hardware": to_json(diagnosis.hardware),
    }


def explanation_as_json(explanation: LogExplanation) -> dict[str, Any]:
    """Plain dictionaries, lists, strings and numbers, `rlc.explain/2`."""
    return {
        "schema": EXPLAIN_SCHEMA,
        "version": __version__,
        "exit_code": explanation.exit_code,
        "source": explanation.source,
        "lines": explanation.num_lines,
        "causes": [_cause(explained) for explained in explanation.causes],
        "unrecognised": _plain(explanation.unrecognised),
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
    methods = [_method(largest) for largest in verdict.methods]
    return {"works": verdict.works, **_plain(replace(verdict, methods=())), "methods": methods}


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


def _plain(value: Any) -> Any:
    """Dataclasses as dictionaries, tuples as lists, and the names of an enumeration in lower case."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.name.lower() if isinstance(value, Enum) else value


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
        "findings": _plain(advice.findings),
        "checks_fine": list(advice.fine),
        "remedies": _plain(advice.remedies),
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
