"""An explanation: what a log has, what caused what, and what it means on a machine; as JSON too.

`schema` is `rlc.explain/1`: keys are only added while it stays 1.

    schema, version   of this form; of rl_compat
    exit_code         1 when a known fault was recognised, else 0
    source, lines     of the log; how many lines it has
    causes            the likeliest first: id, title, component, layer, severity, confidence, date, cause, sources,
                      lines (of each place that is shown: first, last, text), occurrences,
                      concerns_this_machine (`yes`, `unlikely`, `no`, `unknown`, null without a machine), why,
                      findings, checks_fine, remedies (what, step, commands, sure),
                      consequences (id, title, severity, cause, lines, occurrences)
    unrecognised      when there is no known fault: lines that look like an error (number, text), last ones last
    nearest           known errors that resemble them: id, title, cause, line, score, shared
    collect           what to collect for a report
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rl_compat import __version__
from rl_compat.doctor.explain.machine import Advice
from rl_compat.doctor.explain.matching import Match
from rl_compat.doctor.explain.nearest import Candidate
from rl_compat.doctor.explain.ranking import Cause
from rl_compat.doctor.explain.reading import Line
from rl_compat.doctor.findings import Finding, Remedy

SCHEMA = "rlc.explain/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One cause, and what it means on the machine."""

    cause: Cause
    advice: Advice


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that is shown."""

    source: str
    num_lines: int
    causes: tuple[Explained, ...]
    unrecognised: tuple[Line, ...] = ()
    nearest: tuple[Candidate, ...] = ()
    collect: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 when a known fault was recognised; warnings alone are 0, like a log without any."""
        return int(any(explained.cause.severity == 0 for explained in self.causes))


def as_json(explanation: Explanation) -> dict[str, Any]:
    """Plain dictionaries, lists, strings and numbers, in the form that this file describes."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "exit_code": explanation.exit_code,
        "source": explanation.source,
        "lines": explanation.num_lines,
        "causes": [_cause(explained) for explained in explanation.causes],
        "unrecognised": [{"number": line.number, "text": line.text} for line in explanation.unrecognised],
        "nearest": [_candidate(candidate) for candidate in explanation.nearest],
        "collect": list(explanation.collect),
    }


def _cause(explained: Explained) -> dict[str, Any]:
    error, advice = explained.cause.match.error, explained.advice
    return {
        "id": error.id,
        "title": error.title,
        "component": error.component,
        "layer": error.layer.id,
        "severity": error.severity,
        "confidence": error.confidence,
        "date": error.date,
        "cause": error.cause,
        "sources": list(error.sources),
        **_places(explained.cause.match),
        "concerns_this_machine": advice.concerns,
        "why": advice.why,
        "findings": [_finding(finding) for finding in advice.findings],
        "checks_fine": list(advice.fine),
        "remedies": [_remedy(remedy) for remedy in advice.remedies],
        "consequences": [_consequence(match) for match in explained.cause.consequences],
    }


def _consequence(match: Match) -> dict[str, Any]:
    error = match.error
    return {"id": error.id, "title": error.title, "severity": error.severity, "cause": error.cause, **_places(match)}


def _places(match: Match) -> dict[str, Any]:
    shown = [
        {"first": place.first, "last": place.last, "text": [line.text for line in place.matched]}
        for place in match.places
    ]
    return {"lines": shown, "occurrences": match.count}


def _finding(finding: Finding) -> dict[str, Any]:
    return {"id": finding.id, "severity": finding.severity.name.lower(), "what": finding.what, "why": finding.why}


def _remedy(remedy: Remedy) -> dict[str, Any]:
    return {
        "what": remedy.what,
        "step": remedy.step.name.lower(),
        "commands": list(remedy.commands),
        "sure": remedy.sure.name.lower(),
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "id": candidate.error.id,
        "title": candidate.error.title,
        "cause": candidate.error.cause,
        "line": candidate.line.number,
        "score": round(candidate.score, 3),
        "shared": list(candidate.shared),
    }
