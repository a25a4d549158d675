"""A diagnosis as plain text: the verdict, what is wrong, how to fix it, and a summary line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence

from rl_compat.doctor.diagnosis import Diagnosis
from rl_compat.doctor.findings import Check, Finding, Needs, Remedy, Severity
from rl_compat.doctor.fix import Fix, preferred, script
from rl_compat.doctor.report.as_json import severity_name
from rl_compat.doctor.report.outlook import render_verdict
from rl_compat.doctor.report.paper import BAD, BOLD, DIM, FINE, INFO, WARN, Paper

COLOURS = {Severity.OK: FINE, Severity.NOTE: INFO, Severity.WARNING: WARN, Severity.FAILURE: BAD}


def render(diagnosis: Diagnosis, paper: Paper, *, show_all: bool = False) -> list[str]:
    """All lines of the report; `show_all` adds what is fine."""
    shown = [finding for finding in diagnosis.findings if show_all or finding.severity > Severity.OK]
    blocks = [render_verdict(diagnosis, paper)]
    shown_remedies: set[Remedy] = set()
    for finding in shown:
        if finding.severity > Severity.OK:
            blocks.append(_finding(finding, paper, diagnosis.fixes, shown_remedies))
            shown_remedies.update(finding.remedies)
    fine = [line for finding in shown if finding.severity is Severity.OK for line in _line(finding, paper)]
    blocks += [
        fine,
        _commands(diagnosis, paper),
        [paper.paint(line, BOLD) for line in paper.wrap(_summary(diagnosis), rest="  ")],
    ]
    filled = [block for block in blocks if block]
    lines = [line for block in filled for line in ("", *block)][1:]
    return [paper.spell(line) for line in lines]


def render_checks(checks: Sequence[Check], paper: Paper) -> list[str]:
    """One line per check: id, question, and what it needs."""
    width = max((len(check.id) for check in checks), default=0)
    return [paper.spell(f"{check.id:<{width}}  {check.question}{_needs(check)}") for check in checks]


def _needs(check: Check) -> str:
    needs = [name for need, name in ((Needs.TORCH, "torch"), (Needs.NETWORK, "the network")) if need in check.needs]
    return f" (needs {' and '.join(needs)})" if needs else ""


def _line(finding: Finding, paper: Paper) -> list[str]:
    """Severity and fact."""
    name = severity_name(finding.severity)
    lines = paper.wrap(f"{name}: {finding.what}", rest="  ")
    return [lines[0].replace(name, paper.paint(name, COLOURS[finding.severity]), 1), *lines[1:]]


def _finding(finding: Finding, paper: Paper, fixes: Sequence[Fix], shown: Container[Remedy]) -> list[str]:
    """A finding with its remedies; those `shown` above without their commands."""
    about = [("affects", [name.replace("_", " ") for name in finding.affects]), ("found in", finding.where)]
    context = "; ".join(f"{words} {', '.join(names)}" for words, names in about if names)
    in_block = preferred(finding) if any(finding.id in fix.findings for fix in fixes) else None
    return [
        *_line(finding, paper),
        *paper.wrap(finding.why, first="  "),
        *(paper.paint(line, DIM) for line in paper.wrap(context, first="  ")),
        *(
            line
            for number, remedy in enumerate(finding.remedies)
            for line in _remedy(remedy, paper, number, in_block=remedy is in_block, repeated=remedy in shown)
        ),
    ]


def _remedy(remedy: Remedy, paper: Paper, number: int, *, in_block: bool, repeated: bool) -> Iterator[str]:
    """The text, and below it the commands that are not in the block."""
    words = f"as above: {remedy.what.partition('; ')[0]}" if repeated else remedy.what
    yield from paper.wrap(words, first="  or " if number else "  -> ", rest="     ")
    if not in_block and not repeated:
        yield from (f"       {command}" for command in remedy.commands)


def _commands(diagnosis: Diagnosis, paper: Paper) -> list[str]:
    lines = list(script(diagnosis.fixes, brief=True))
    if not lines:
        return []
    return [
        paper.paint("to fix this, in this order:", BOLD),
        *(f"  {paper.paint(line, DIM) if line.startswith('#') else line}" for line in lines),
    ]


def _summary(diagnosis: Diagnosis) -> str:
    """`34 checks in 1.3 s (torch 3.1 s): 20 fine, 11 not applicable, 2 notes, 1 warning`."""
    results, torch = diagnosis.results, diagnosis.hardware.software.torch_seconds
    fine = sum(bool(result.findings) and result.severity is Severity.OK for result in results)
    silent = sum(not result.findings for result in results)
    counts = Counter(finding.severity for finding in diagnosis.findings)
    worse = [(counts[kind], _plural(severity_name(kind), counts[kind])) for kind in Severity if kind]
    parts = [
        (fine, "fine"),
        (silent, "not applicable"),
        (len(diagnosis.skipped), "skipped"),
        *worse,
    ]
    listed = ", ".join(f"{count} {name}" for count, name in parts if count) or "nothing to report"
    timed = f"{diagnosis.seconds:.1f} s" + (f" (torch {torch:.1f} s)" if torch is not None else "")
    return f"{len(results)} {_plural('check', len(results))} in {timed}: {listed}"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
