"""Explaining a log: read it, find the known errors, rank them by cause, and say what each means on the machine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from rl_compat.doctor.diagnosis import excluded_by, read_machine, run_checks
from rl_compat.doctor.explain.matching import LogErrors, find_errors
from rl_compat.doctor.explain.nearest import SimilarError, nearest_errors
from rl_compat.doctor.explain.patterns import KnownError, KnownRemedy, known_errors
from rl_compat.doctor.explain.ranking import Cause, rank
from rl_compat.doctor.explain.reading import Line, open_log, read_blocks
from rl_compat.doctor.findings import Certainty, Check, CheckResult, Finding, Remedy, Severity, Step
from rl_compat.doctor.options import Options
from rl_compat.doctor.remedies import torch_remedies
from rl_compat.doctor.tables.rows import capability_text
from rl_compat.doctor.tables.target import target_of
from rl_compat.hardware.recording import load_recording
from rl_compat.hardware.types import Hardware

SHOWN_SUSPECTS = 4
MOST_REMEDIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice about one error on one machine."""

    concerns: str
    "whether the error can come from this machine: `yes`, `unlikely`, `no` or `unknown`"
    why: str
    "why not, or which device; empty if every machine can produce it"
    findings: tuple[Finding, ...]
    "of its checks, in their order, except what is fine"
    fine: tuple[str, ...]
    "ids of its checks that found everything fine"
    remedies: tuple[Remedy, ...]
    "those of the findings, then those of the table that apply to the machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One cause, and what it means on the machine."""

    cause: Cause
    advice: Advice


@dataclass(frozen=True, slots=True, kw_only=True)
class LogExplanation:
    """Everything that is shown."""

    source: str
    num_lines: int
    causes: tuple[Explained, ...]
    unrecognised: tuple[Line, ...] = ()
    nearest: tuple[SimilarError, ...] = ()
    collect: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 if a known fault was recognised; 0 for warnings only, or nothing."""
        return int(any(explained.cause.severity == 0 for explained in self.causes))


def explain_log(options: Options, program: str, checks: Sequence[Check]) -> LogExplanation:
    """The explanation of `options.log`, or of standard input. Raises RLCompatError."""
    recording = load_recording(options.hardware) if options.hardware is not None else None
    source = "the text" if options.log is None else str(options.log)
    with ExitStack() as stack:
        stream = sys.stdin.buffer if options.log is None else stack.enter_context(open_log(options.log))
        found = find_errors(read_blocks(stream, source if options.log is None else f"`{source}`"), known_errors())
    causes = _on_machine(rank(found.matches), recording, options, checks)
    explanation = LogExplanation(source=source, num_lines=found.num_lines, causes=causes)
    return explanation if explanation.exit_code else _with_unrecognised(explanation, found, program)


def _on_machine(
    causes: Sequence[Cause], recording: Hardware | None, options: Options, checks: Sequence[Check]
) -> tuple[Explained, ...]:
    """Every cause with the advice for the machine.

    The machine is probed only if there is a cause, torch and servers only if a check of a cause needs them.
    """
    if not causes:
        return ()
    named = checks_of([cause.match.error for cause in causes], checks)
    selected = [check for check in named if excluded_by(check, options) is None]
    hardware = recording or read_machine(options, selected)
    results = {result.check.id: result for result in run_checks(selected, hardware)}
    return tuple(
        Explained(
            cause=cause,
            advice=advise(
                cause.match.error, hardware, [results[id] for id in cause.match.error.checks if id in results]
            ),
        )
        for cause in causes
    )


def _with_unrecognised(explanation: LogExplanation, found: LogErrors, program: str) -> LogExplanation:
    """With the last lines that look like an error, the known errors they resemble, and what to collect."""
    known = {number for match in found.matches for number in match.numbers}
    unknown = [line for line in found.suspects if line.number not in known]
    if not unknown:
        return explanation
    doctor = program.removesuffix(" explain")
    return replace(
        explanation,
        unrecognised=tuple(unknown[-SHOWN_SUSPECTS:]),
        nearest=nearest_errors(unknown),
        collect=(
            f"`{doctor}` diagnoses this machine",
            f"`{doctor} --bundle report.zip` collects machine, versions, plan and log for a report, without names",
            "the whole log: its first error says more than its last, so run again with `2>&1 | tee run.log`",
        ),
    )


def advise(error: KnownError, hardware: Hardware, results: Sequence[CheckResult]) -> Advice:
    """The advice for the machine; `results` are those of the error's checks.

    If the error cannot come from this machine, the remedies are for the one that produced it.
    """
    concerns, why = origin(error, hardware)
    if concerns != "yes":
        elsewhere = tuple(_elsewhere(remedy) for remedy in error.remedies[:MOST_REMEDIES])
        return Advice(concerns=concerns, why=why, findings=(), fine=(), remedies=elsewhere)
    findings = [finding for result in results for finding in result.findings if finding.severity > Severity.NOTE]
    fine = [result.check.id for result in results if result.findings and result.severity <= Severity.NOTE]
    found = [remedy for finding in findings for remedy in finding.remedies[:1]]
    known = [suiting for remedy in error.remedies for suiting in _suiting(remedy, hardware)]
    return Advice(
        concerns=concerns,
        why=why,
        findings=tuple(findings),
        fine=tuple(fine),
        remedies=tuple(_once([*found, *known])[:MOST_REMEDIES]),
    )


def origin(error: KnownError, hardware: Hardware) -> tuple[str, str]:
    """Whether the error can come from the cards of the machine, and why."""
    applies, cards = error.applies_to, target_of(hardware).cards
    if not applies.ranges:
        return "yes", ""
    if not cards:
        return "unknown", f"the message comes from compute capability {applies}, but this machine shows no card"
    inside = [card for card in cards if card in applies]
    if inside and len(inside) < len(cards):
        names = [f"cuda:{it.index} ({it.name})" for it in hardware.devices if it.compute_capability in inside]
        listed = ", ".join(names or map(capability_text, inside))
        return "yes", f"the message comes from compute capability {applies}: {listed}"
    if inside:
        return "yes", ""
    has = f"this machine has compute capability {' and '.join(capability_text(card) for card in sorted(set(cards)))}"
    usually = "" if applies.only else "usually "
    return (
        "no" if applies.only else "unlikely",
        f"{has}, but the message {usually}comes from {applies}: is the log from another machine?",
    )


def checks_of(errors: Sequence[KnownError], checks: Sequence[Check]) -> tuple[Check, ...]:
    """The doctor's checks that any of the errors names."""
    named = {id for error in errors for id in error.checks}
    return tuple(check for check in checks if check.id in named)


def _suiting(remedy: KnownRemedy, hardware: Hardware) -> list[Remedy]:
    """The remedy for the machine; empty if it does not apply to its cards or its system."""
    cards = target_of(hardware).cards
    suits = not cards or any(card in remedy.capabilities for card in cards)
    step = Step[remedy.step.upper()]
    if not suits or (step is Step.DRIVER and hardware.host.wsl):
        return []
    if remedy.install_torch:
        return list(torch_remedies(hardware)[:1]) if cards else [_elsewhere(remedy)]
    what = f"on the host: {remedy.what}" if step is Step.DRIVER and hardware.host.container else remedy.what
    return [_remedy(remedy, what, hardware.software.executable or "python")]


def _elsewhere(remedy: KnownRemedy) -> Remedy:
    """The remedy for another machine, whose Python and cards are unknown."""
    named = "; run `rlc doctor` there to find it" if remedy.install_torch else ""
    for_cards = f", on compute capability {remedy.capabilities}" if remedy.capabilities.ranges else ""
    return _remedy(remedy, f"on the machine of the log: {remedy.what}{for_cards}{named}", "python")


def _remedy(remedy: KnownRemedy, what: str, python: str) -> Remedy:
    """With the pip commands for that Python."""
    commands = list(remedy.commands)
    if remedy.pip_uninstall:
        commands.append(shlex.join([python, "-m", "pip", "uninstall", "--yes", *remedy.pip_uninstall]))
    if remedy.pip_install:
        commands.append(shlex.join([python, "-m", "pip", "install", *remedy.pip_install]))
    return Remedy(what, Step[remedy.step.upper()], tuple(commands), Certainty[remedy.certainty.upper()])


def _once(remedies: Sequence[Remedy]) -> list[Remedy]:
    known: dict[tuple[object, ...], Remedy] = {}
    for remedy in remedies:
        known.setdefault(remedy.commands or (remedy.what,), remedy)
    return list(known.values())
