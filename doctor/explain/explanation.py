"""Explaining a log: read it, find the known errors, rank them by cause, and check the machine for each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from rl_compat.doctor.diagnosis import excluded_by, read_machine, run_checks
from rl_compat.doctor.explain.machine import Advice, advise, checks_of
from rl_compat.doctor.explain.matching import LogErrors, find_errors
from rl_compat.doctor.explain.nearest import SimilarError, nearest_errors
from rl_compat.doctor.explain.patterns import known_errors
from rl_compat.doctor.explain.ranking import Cause, rank
from rl_compat.doctor.explain.reading import Line, open_log, read_blocks
from rl_compat.doctor.findings import Check
from rl_compat.doctor.options import Options
from rl_compat.hardware.recording import load_recording
from rl_compat.hardware.types import Hardware

SHOWN_SUSPECTS = 4


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
