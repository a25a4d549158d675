"""`rlc doctor explain`: the real cause of an error text, and what mends it on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rl_compat.doctor.command import waiting
from rl_compat.doctor.explain.explanation import Explained, Explanation, as_json
from rl_compat.doctor.explain.machine import advise, checks_of
from rl_compat.doctor.explain.matching import Found, find_errors
from rl_compat.doctor.explain.nearest import nearest_errors
from rl_compat.doctor.explain.page import render
from rl_compat.doctor.explain.patterns import known_errors
from rl_compat.doctor.explain.ranking import Cause, rank
from rl_compat.doctor.explain.reading import open_log, read_blocks
from rl_compat.doctor.options import TORCH_SECONDS, Help, Parser
from rl_compat.doctor.runner import run_checks
from rl_compat.doctor.screen import paper_of
from rl_compat.doctor.types import Check, CheckResult
from rl_compat.errors import AskedWrongly, RLCompatError
from rl_compat.hardware.types import Hardware

SHOWN_SUSPECTS = 4

ABOUT = """\
Read a log or a pasted traceback, name the real cause of what it says, and what mends it on this machine.

Of several known errors the one that caused the others comes first. The log may have colours, progress bars,
timestamps, Ray's and torchrun's prefixes, wrapped lines and Windows line ends, and be of any size."""
EXAMPLES = """\
examples:
  {program} train.log                       a file
  rlc train gsm8k 2>&1 | {program} -        what a command prints
  {program} train.log --hardware p40.json   a log of a machine recorded with `rlc probe --json`

exit codes: 1 a known fault was recognised, 0 none (nothing known, or only warnings), 2 asked wrongly"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked."""

    file: Path | None
    "None for what is piped in"
    as_json: bool
    hardware: Path | None
    torch_seconds: float | None
    "None to leave torch alone"


def main(arguments: Sequence[str], *, program: str) -> int:
    """Run the command and return its exit code: 1 a known fault was recognised, 0 none, 2 asked wrongly."""
    try:
        asked = parse(arguments, program)
        explanation = explain(asked, program)
    except SystemExit as stop:
        return int(stop.code or 0)
    except RLCompatError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    if asked.as_json:
        print(json.dumps(as_json(explanation), indent=2))
    else:
        print("\n".join(render(explanation, paper_of(sys.stdout))))
    return explanation.exit_code


def parse(arguments: Sequence[str], program: str) -> Asked:
    """The options. Raises AskedWrongly; `--help` prints and raises SystemExit."""
    parser = Parser(
        prog=program,
        description=ABOUT,
        epilog=EXAMPLES.format(program=program),
        formatter_class=Help,
        allow_abbrev=False,
        usage=f"{program} [OPTION]... [FILE|-]",
    )
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE", help="the log; `-`, or nothing, reads what is piped in")
    add("--json", action="store_true", help="print JSON, schema rlc.explain/1")
    add("--hardware", type=Path, metavar="FILE", help="a recording of the machine that the log is from")
    add("--no-torch", action="store_true", help="leave torch alone, and out the checks that need it")
    add(
        "--torch-timeout",
        type=_seconds,
        default=TORCH_SECONDS,
        metavar="SECONDS",
        help=f"give torch so long to answer, {TORCH_SECONDS:g} when not given; asked only when an error needs it",
    )
    known = parser.parse_args(list(arguments))
    if known.file is None and sys.stdin.isatty():
        raise AskedWrongly("no log was given", hint=f"name a file, or pipe one in: `rlc train gsm8k 2>&1 | {program}`")
    return Asked(
        file=None if known.file in (None, "-") else Path(known.file),
        as_json=known.json,
        hardware=known.hardware,
        torch_seconds=None if known.no_torch else known.torch_timeout,
    )


def explain(asked: Asked, program: str) -> Explanation:
    """Read the log, rank what is in it, and ask the machine about it. Raises RLCompatError."""
    recording = _recording(asked.hardware)
    source = "the text" if asked.file is None else str(asked.file)
    with ExitStack() as stack:
        stream = sys.stdin.buffer if asked.file is None else stack.enter_context(open_log(asked.file))
        found = find_errors(read_blocks(stream, source if asked.file is None else f"`{source}`"), known_errors())
    causes = _on_machine(rank(found.matches), recording, asked.torch_seconds)
    explanation = Explanation(source=source, num_lines=found.num_lines, causes=causes)
    return explanation if explanation.exit_code else _with_what_is_unknown(explanation, found, program)


def _on_machine(
    causes: Sequence[Cause], recording: Hardware | None, torch_seconds: float | None
) -> tuple[Explained, ...]:
    """Every cause with the advice for the machine, which is not looked at when there is no cause."""
    from rl_compat.doctor.table import CHECKS

    if not causes:
        return ()
    errors = [cause.match.error for cause in causes]
    asked = checks_of(errors, CHECKS)
    hardware, checks = (recording, asked) if recording else _probe(asked, torch_seconds)
    results = {result.check.id: result for result in run_checks(checks, hardware)}
    return tuple(_explained(cause, hardware, results) for cause in causes)


def _explained(cause: Cause, hardware: Hardware, results: Mapping[str, CheckResult]) -> Explained:
    error = cause.match.error
    asked = [results[id] for id in error.checks if id in results]
    return Explained(cause=cause, advice=advise(error, hardware, asked))


def _probe(checks: Sequence[Check], torch_seconds: float | None) -> tuple[Hardware, tuple[Check, ...]]:
    """This machine, and those of the checks that its reading can answer: torch is asked when one needs it."""
    from rl_compat.hardware.probe import probe

    if torch_seconds is None:
        checks = [check for check in checks if not check.needs_torch]
    seconds = torch_seconds if any(check.needs_torch for check in checks) else None
    with waiting("looking at torch" if seconds else ""):
        return probe(torch_timeout_seconds=seconds), tuple(checks)


def _with_what_is_unknown(explanation: Explanation, found: Found, program: str) -> Explanation:
    """With the last lines that look like an error, what they resemble, and what to collect."""
    suspects = list(found.suspects)
    known = {number for match in found.matches for number in match.numbers}
    unknown = [line for line in suspects if line.number not in known]
    if not unknown:
        return explanation
    doctor = program.removesuffix(" explain")
    return Explanation(
        source=explanation.source,
        num_lines=explanation.num_lines,
        causes=explanation.causes,
        unrecognised=tuple(unknown[-SHOWN_SUSPECTS:]),
        nearest=nearest_errors(unknown),
        collect=(
            f"`{doctor}` diagnoses this machine",
            f"`{doctor} --bundle report.zip` collects machine, versions, plan and log for a report, names replaced",
            "the whole log: the first error in it says more than the last, so run again with `2>&1 | tee run.log`",
        ),
    )


def _recording(file: Path | None) -> Hardware | None:
    from rl_compat.hardware.recording import load_recording

    return None if file is None else load_recording(file)


def _seconds(text: str) -> float:
    """A positive number. Raises the error that argparse shows."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"`{text}` is not a positive number of seconds")
    return seconds
