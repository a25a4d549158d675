"""The doctor's command line, the same for `python3 doctor` and `rlc doctor`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rl_compat.doctor.options import Options, parse, parse_explain
from rl_compat.doctor.report.paper import Paper, paper_of
from rl_compat.errors import RLCompatError

if TYPE_CHECKING:
    from rl_compat.doctor.diagnosis import Diagnosis
    from rl_compat.doctor.findings import Check

INTERRUPTED = 130
PIPE_CLOSED = 141


def main(
    arguments: Sequence[str] | None = None,
    *,
    program: str = "python3 doctor",
    checks: Sequence[Check] | None = None,
) -> int:
    """Run the command and return its exit code: 0 nothing worse than a warning, 1 a failure, 2 usage error.

    `checks` defaults to all checks.
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
    """Do what the arguments say and return the exit code. Raises RLCompatError."""
    if arguments and arguments[0] == "explain":
        return explain(arguments[1:], f"{program} explain", checks)
    options = parse(arguments, program)
    from rl_compat.doctor.diagnosis import diagnose, select_checks
    from rl_compat.doctor.table import CHECKS

    selected = select_checks(CHECKS if checks is None else checks, options.only)
    if options.list_checks:
        from rl_compat.doctor.report.screen import render_checks

        print("\n".join(render_checks(selected, paper_of(sys.stdout))))
        return 0
    if options.bundle is not None:
        from rl_compat.doctor.report.bundle import refuse_request

        refuse_request(options.bundle, options.run_folder)
    if options.yes:
        return fix(options, selected)
    diagnosis = diagnose(options, selected)
    show(diagnosis, options)
    return diagnosis.exit_code


def explain(arguments: Sequence[str], program: str, checks: Sequence[Check] | None = None) -> int:
    """Print the root cause in a log. Raises RLCompatError."""
    options = parse_explain(arguments, program)
    from rl_compat.doctor.explain.explanation import explain_log
    from rl_compat.doctor.explain.page import render as render_page
    from rl_compat.doctor.report.as_json import explanation_as_json
    from rl_compat.doctor.table import CHECKS

    explanation = explain_log(options, program, CHECKS if checks is None else checks)
    if options.as_json:
        print(json.dumps(explanation_as_json(explanation), indent=2))
    else:
        print("\n".join(render_page(explanation, paper_of(sys.stdout))))
    return explanation.exit_code


def fix(options: Options, checks: Sequence[Check]) -> int:
    """Run the commands that fix this environment, then show what remains; also 1 if a command failed."""
    from rl_compat.doctor.diagnosis import diagnose
    from rl_compat.doctor.fix import refuse_system_python, run_all, runnable

    refuse_system_python()
    diagnosis = diagnose(options, checks)
    commands = runnable(diagnosis.fixes)
    if not commands:
        print("nothing to run: no command below changes this environment\n")
        show(diagnosis, replace(options, fix=False))
        return diagnosis.exit_code
    succeeded = run_all(commands)
    print("\nremaining findings:\n")
    remaining = diagnose(options, checks)
    show(remaining, replace(options, fix=False))
    return remaining.exit_code or int(not succeeded)


def show(diagnosis: Diagnosis, options: Options) -> None:
    """Print JSON, the script or the report, and write the bundle. Raises UsageError if that cannot be written."""
    from rl_compat.doctor.fix import script
    from rl_compat.doctor.report.as_json import as_json
    from rl_compat.doctor.report.screen import render

    if options.as_json:
        print(json.dumps(as_json(diagnosis), indent=2))
    elif options.fix:
        print("\n".join(map(paper_of(sys.stdout).spell, script(diagnosis.fixes))) or "# nothing to fix")
    else:
        print("\n".join(render(diagnosis, paper_of(sys.stdout), show_all=options.show_all)))
    if options.bundle is None:
        return
    from rl_compat.doctor.report.bundle import describe_bundle, write_bundle

    reports = {
        "findings.json": as_json(diagnosis),
        "report.txt": "\n".join([*render(diagnosis, Paper(), show_all=True), ""]),
    }
    write_bundle(options.bundle, hardware=diagnosis.hardware, reports=reports, run_folder=options.run_folder)
    lines = [f"wrote `{options.bundle}`:", *(f"  {line}" for line in describe_bundle(options.bundle))]
    print("\n".join(lines), file=sys.stderr)
