"""`rlc doctor explain`: the real cause of an error text, and what mends it on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rl_compat.doctor.command import all_checks, read_machine, reason_left_out
from rl_compat.doctor.explain.explanation import Explained, Explanation, as_json
from rl_compat.doctor.explain.machine import advise, checks_of
from rl_compat.doctor.explain.matching import Found, find_errors
from rl_compat.doctor.explain.nearest import nearest_errors
from rl_compat.doctor.explain.page import render
from rl_compat.doctor.explain.patterns import known_errors
from rl_compat.doctor.explain.ranking import Cause, rank
from rl_compat.doctor.explain.reading import open_log, read_blocks
from rl_compat.doctor.findings import CheckResult
from rl_compat.doctor.options import TORCH_SECONDS, Help, Options, Parser, parse_seconds
from rl_compat.doctor.report.screen import paper_of
from rl_compat.doctor.runner import run_checks
from rl_compat.errors import RLCompatError, UsageError
from rl_compat.hardware.recording import load_recording
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
    options: Options
    "of the doctor, for the look at the machine"


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
    if asked.options.as_json:
        print(json.dumps(as_json(explanation), indent=2))
    else:
        print("\n".join(render(explanation, paper_of(sys.stdout))))
    return explanation.exit_code


def parse(arguments: Sequence[str], program: str) -> Asked:
    """The options. Raises UsageError; `--help` prints and raises SystemExit."""
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
    add("--no-network", action="store_true", help="leave the network alone, and out the checks that need it")
    add(
        "--torch-timeout",
        type=parse_seconds,
        default=TORCH_SECONDS,
        metavar="SECONDS",
        help=f"give torch so long to answer, {TORCH_SECONDS:g} when not given; asked only when an error needs it",
    )
    known = parser.parse_args(list(arguments))
    if known.file is None and sys.stdin.isatty():
        hint = f"name a file, or pipe one in: `rlc train gsm8k 2>&1 | {program}`"
        raise UsageError("no log was given", hint=hint)
    options = Options(
        as_json=known.json,
        hardware=known.hardware,
        torch=not known.no_torch,
        torch_seconds=known.torch_timeout,
        network=not known.no_network,
    )
    return Asked(file=None if known.file in (None, "-") else Path(known.file), options=options)


def explain(asked: Asked, program: str) -> Explanation:
    """Read the log, rank what is in it, and ask the machine about it. Raises RLCompatError."""
    recording = load_recording(asked.options.hardware) if asked.options.hardware is not None else None
    source = "the text" if asked.file is None else str(asked.file)
    with ExitStack() as stack:
        stream = sys.stdin.buffer if asked.file is None else stack.enter_context(open_log(asked.file))
        found = find_errors(read_blocks(stream, source if asked.file is None else f"`{source}`"), known_errors())
    causes = _on_machine(rank(found.matches), recording, asked.options)
    explanation = Explanation(source=source, num_lines=found.num_lines, causes=causes)
    return explanation if explanation.exit_code else _with_what_is_unknown(explanation, found, program)


def _on_machine(causes: Sequence[Cause], recording: Hardware | None, options: Options) -> tuple[Explained, ...]:
    """Every cause with the advice for the machine, which is not looked at when there is no cause.

    Torch and servers are asked only when one of the causes has a check that needs them.
    """
    if not causes:
        return ()
    named = checks_of([cause.match.error for cause in causes], all_checks())
    checks = [check for check in named if reason_left_out(check, options) is None]
    hardware = recording or read_machine(options, checks)
    results = {result.check.id: result for result in run_checks(checks, hardware)}
    return tuple(_explained(cause, hardware, results) for cause in causes)


def _explained(cause: Cause, hardware: Hardware, results: Mapping[str, CheckResult]) -> Explained:
    error = cause.match.error
    asked = [results[id] for id in error.checks if id in results]
    return Explained(cause=cause, advice=advise(error, hardware, asked))


def _with_what_is_unknown(explanation: Explanation, found: Found, program: str) -> Explanation:
    """With the last lines that look like an error, what they resemble, and what to collect."""
    suspects = list(found.suspects)
    known = {number for match in found.matches for number in match.numbers}
    unknown = [line for line in suspects if line.number not in known]
    if not unknown:
        return explanation
    doctor = program.removesuffix(" explain")
    return replace(
        explanation,
        unrecognised=tuple(unknown[-SHOWN_SUSPECTS:]),
        nearest=nearest_errors(unknown),
        collect=(
            f"`{doctor}` diagnoses this machine",
            f"`{doctor} --bundle report.zip` collects machine, versions, plan and log for a report, names replaced",
            "the whole log: the first error in it says more than the last, so run again with `2>&1 | tee run.log`",
        ),
    )
