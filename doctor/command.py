"""The doctor's command line, the same for `python3 doctor` and `rlc doctor`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rl_compat.doctor.diagnosis import Diagnosis
from rl_compat.doctor.findings import Check, Severity
from rl_compat.doctor.fix import refuse_system_python, run_all, runnable
from rl_compat.doctor.mend import mending, renews_torch, script
from rl_compat.doctor.options import Options, parse
from rl_compat.doctor.report.as_json import as_json
from rl_compat.doctor.report.paper import Paper, paper_of
from rl_compat.doctor.report.screen import render, render_checks
from rl_compat.doctor.runner import run_checks, select_checks
from rl_compat.doctor.verdict import judge, judge_mended
from rl_compat.errors import RLCompatError, UsageError
from rl_compat.hardware.types import Hardware

INTERRUPTED = 130
PIPE_CLOSED = 141


def main(
    arguments: Sequence[str] | None = None,
    *,
    program: str = "python3 doctor",
    checks: Sequence[Check] | None = None,
) -> int:
    """Run the command and return its exit code: 0 nothing worse than a warning, 1 a failure, 2 asked wrongly.

    `checks` are those of the table when not given.
    """
    try:
        code = run(list(sys.argv[1:] if arguments is None else arguments), program, checks)
        sys.stdout.flush()
        return code
    except RLCompatError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except SystemExit as stop:
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def run(arguments: Sequence[str], program: str, checks: Sequence[Check] | None = None) -> int:
    """The exit code of what the arguments ask for. Raises RLCompatError."""
    if arguments and arguments[0] == "explain":
        from rl_compat.doctor.explain.command import main as explain

        return explain(arguments[1:], program=f"{program} explain")
    options = parse(arguments, program)
    selected = select_checks(all_checks() if checks is None else checks, options.only)
    if options.listed:
        print("\n".join(render_checks(selected, paper_of(sys.stdout))))
        return 0
    if options.bundle is not None:
        from rl_compat.doctor.report.bundle import refuse_request

        refuse_request(options.bundle, options.run_folder)
    if options.yes:
        return mend(options, selected)
    diagnosis = diagnose(options, selected)
    show(diagnosis, options)
    return diagnosis.exit_code


def all_checks() -> tuple[Check, ...]:
    from rl_compat.doctor.table import CHECKS

    return CHECKS


def mend(options: Options, checks: Sequence[Check]) -> int:
    """Run what mends this environment, then say what is left; 1 too when a command failed."""
    refuse_system_python()
    diagnosis = diagnose(options, checks)
    commands = runnable(diagnosis.mending)
    if not commands:
        print("nothing to run: no command of the block below changes this environment\n")
        show(diagnosis, replace(options, fix=False))
        return diagnosis.exit_code
    went_well = run_all(commands)
    print("\nwhat is left:\n")
    left = diagnose(options, checks)
    show(left, replace(options, fix=False))
    return left.exit_code or int(not went_well)


def diagnose(options: Options, checks: Sequence[Check]) -> Diagnosis:
    """Read the machine, as far as the checks need it, and ask them."""
    started = time.perf_counter()
    left_out = tuple((check, option) for check in checks if (option := reason_left_out(check, options)))
    if left_out and options.only:
        check, option = left_out[0]
        raise UsageError(
            f"`--only {check.id}` and `{option}` exclude each other", hint=f"leave out `{option}`, or the check"
        )
    asked = [check for check in checks if check not in [check for check, _ in left_out]]
    hardware = read_machine(options, asked)
    results = run_checks(asked, hardware)
    findings = [finding for result in results for finding in result.findings]
    failures = [finding.what for finding in findings if finding.severity is Severity.FAILURE]
    mends = mending(findings, hardware)
    verdict = None if options.only else judge(hardware, failures)
    broken = verdict is not None and not verdict.works
    return Diagnosis(
        hardware=hardware,
        results=results,
        left_out=left_out,
        verdict=verdict,
        once_mended=judge_mended(hardware, new_torch=renews_torch(mends)) if broken else None,
        mending=mends,
        seconds=time.perf_counter() - started,
    )


def reason_left_out(check: Check, options: Options) -> str | None:
    """The option that leaves a check out; a recording has its facts, whatever they cost to read."""
    if options.hardware is not None:
        return None
    if check.needs_torch and not options.torch:
        return "--no-torch"
    return "--no-network" if check.needs_network and not options.network else None


def read_machine(options: Options, checks: Sequence[Check]) -> Hardware:
    """The recording, or this machine: torch, packages and servers are asked only when a check needs their answer."""
    if options.hardware is not None:
        from rl_compat.hardware.recording import load_recording

        return load_recording(options.hardware)
    from rl_compat.hardware.probe import probe

    imports = options.torch and any(check.wants_imports for check in checks)
    torch_seconds = options.torch_seconds if imports or any(check.needs_torch for check in checks) else None
    network_seconds = options.network_seconds if any(check.needs_network for check in checks) else None
    with waiting("looking at torch" if torch_seconds else ""):
        return probe(torch_timeout_seconds=torch_seconds, packages=imports, network_timeout_seconds=network_seconds)


@contextmanager
def waiting(words: str) -> Iterator[None]:
    """A line on the terminal while something takes its time, gone afterwards."""
    shown = f"{words} ..." if words and sys.stderr.isatty() else ""
    print(shown, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print(f"\r{' ' * len(shown)}\r", end="", file=sys.stderr, flush=True)


def show(diagnosis: Diagnosis, options: Options) -> None:
    """On stdout JSON, the script or the report; a bundle beside it. Raises UsageError when that cannot be written."""
    if options.as_json:
        print(json.dumps(as_json(diagnosis), indent=2))
    elif options.fix:
        print("\n".join(map(paper_of(sys.stdout).spell, script(diagnosis.mending))) or "# nothing to mend")
    else:
        print("\n".join(render(diagnosis, paper_of(sys.stdout), show_all=options.show_all)))
    if options.bundle is not None:
        bundle(diagnosis, options.bundle, options.run_folder)


def bundle(diagnosis: Diagnosis, path: Path, run_folder: Path | None) -> None:
    """Write the zip file for a bug report and say on stderr what is in it."""
    from rl_compat.doctor.report.bundle import describe_bundle, write_bundle

    write_bundle(
        path,
        hardware=diagnosis.hardware,
        report_json=as_json(diagnosis),
        report_text="\n".join([*render(diagnosis, Paper(), show_all=True), ""]),
        run_folder=run_folder,
    )
    print("\n".join([f"wrote `{path}`:", *(f"  {line}" for line in describe_bundle(path))]), file=sys.stderr)
