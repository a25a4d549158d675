"""The arguments of `rlc doctor` and `rlc doctor explain`: what they accept and what they refuse."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rl_compat.doctor.report.paper import USUAL
from rl_compat.errors import UsageError, did_you_mean

TORCH_SECONDS = 60.0
NETWORK_SECONDS = 5.0

ABOUT = """\
Find out what prevents training on this machine, why it matters, and which commands fix it.

`python3 doctor` needs only the standard library: it works in a checkout before anything is
installed. It imports torch in a child process, so that a broken torch is a finding."""
EXAMPLES = """\
examples:
  {program}                            diagnose this machine
  {program} --all                      also show what is fine
  {program} --only torch,driver        run only these checks; --list shows them
  {program} --fix                      print the commands; --fix --yes runs those of pip
  {program} --hardware p40.json        diagnose a recording of another machine
  {program} --cluster auto             diagnose every node of a Ray cluster, and compare them
  {program} explain error.log          find the root cause in a log

exit codes: 0 nothing worse than a warning, 1 a failure, 2 usage error, 130 interrupted"""
ABOUT_EXPLAIN = """\
Read a log or a pasted traceback, find the root cause of its errors, and how to fix it on this machine.

If several known errors are found, the one that caused the others comes first. The log may have colours,
progress bars, timestamps, prefixes of Ray and torchrun, wrapped lines and Windows line ends, and any size."""
EXAMPLES_EXPLAIN = """\
examples:
  {program} train.log                       read a file
  rlc train gsm8k 2>&1 | {program} -        read the output of a command
  {program} train.log --hardware p40.json   a log of a machine recorded with `rlc probe --json`

exit codes: 0 no known fault (nothing known, or only warnings), 1 a known fault, 2 usage error"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The parsed arguments of both commands."""

    only: tuple[str, ...] = ()
    "ids of checks; empty for all"
    list_checks: bool = False
    show_all: bool = False
    as_json: bool = False
    hardware: Path | None = None
    cluster: str | None = None
    "address of a Ray cluster whose nodes are diagnosed"
    torch: bool = True
    torch_seconds: float = TORCH_SECONDS
    network: bool = True
    network_seconds: float = NETWORK_SECONDS
    fix: bool = False
    yes: bool = False
    bundle: Path | None = None
    run_folder: Path | None = None
    log: Path | None = None
    "of `explain`; None for standard input"


class Parser(argparse.ArgumentParser):
    """argparse with the errors of this project."""

    def error(self, message: str) -> NoReturn:
        fact = re.sub(r"argument (\S+): ", r"`\1`: ", message).replace("'", "`").rstrip(".")
        raise UsageError(fact, hint=f"`{self.prog} --help` lists the options")


class Help(argparse.RawDescriptionHelpFormatter):
    """As wide as a report, and with a capital in `Usage`, as in the other commands."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=USUAL)

    def add_usage(self, usage, actions, groups, prefix=None):  # type: ignore[no-untyped-def]
        super().add_usage(usage, actions, groups, "Usage: " if prefix is None else prefix)


def parse(arguments: Sequence[str], program: str) -> Options:
    """The options of the doctor. Raises UsageError; `--help` prints and raises SystemExit."""
    parser = _new_parser(program, ABOUT, EXAMPLES, usage=f"{program} [OPTION]...\n       {program} explain [FILE|-]")
    add = parser.add_argument
    add("--list", dest="list_checks", action="store_true", help="list the checks and exit")
    add("--only", action="append", default=[], metavar="ID[,ID]", help="run only these checks; may be repeated")
    add("--all", dest="show_all", action="store_true", help="also show what is fine")
    add("--json", dest="as_json", action="store_true", help="print JSON, schema rlc.doctor/2")
    _add_machine(parser, "diagnose a recording made with `rlc probe --json`")
    add("--cluster", metavar="ADDRESS", help="diagnose every node of the Ray cluster at this address, or `auto`")
    _add_seconds(parser, "--network-timeout", "network_seconds", NETWORK_SECONDS, "time limit for each server")
    add("--fix", action="store_true", help="print the commands that fix the machine, as a script")
    add("--yes", action="store_true", help="with --fix: run those that change only this virtual environment")
    add("--bundle", type=Path, metavar="OUT.zip", help="also write the data for a bug report, without names or secrets")
    add(
        "--run", dest="run_folder", type=Path, metavar="FOLDER", help="with --bundle: the run whose plan and log to add"
    )
    known, unknown = parser.parse_known_args(list(arguments))
    if unknown:
        raise _unknown(unknown[0], parser)
    known.only = tuple(id for text in known.only for id in re.split(r"[,\s]+", text) if id)
    options = Options(**vars(known))
    _refuse_contradictions(options)
    return options


def parse_explain(arguments: Sequence[str], program: str) -> Options:
    """The options of `explain`. Raises UsageError; `--help` prints and raises SystemExit."""
    parser = _new_parser(program, ABOUT_EXPLAIN, EXAMPLES_EXPLAIN, usage=f"{program} [OPTION]... [FILE|-]")
    parser.add_argument("log", nargs="?", metavar="FILE", help="the log; `-` or nothing reads standard input")
    parser.add_argument("--json", dest="as_json", action="store_true", help="print JSON, schema rlc.explain/2")
    _add_machine(parser, "a recording of the machine that produced the log")
    known = parser.parse_args(list(arguments))
    if known.log is None and sys.stdin.isatty():
        hint = f"name a file, or use a pipe: `rlc train gsm8k 2>&1 | {program}`"
        raise UsageError("no log is given", hint=hint)
    known.log = None if known.log in (None, "-") else Path(known.log)
    return Options(**vars(known))


def _new_parser(program: str, about: str, examples: str, *, usage: str) -> Parser:
    return Parser(
        prog=program,
        description=about,
        epilog=examples.format(program=program),
        formatter_class=Help,
        allow_abbrev=False,
        usage=usage,
    )


def _add_machine(parser: Parser, hardware: str) -> None:
    """The options that say how to read the machine."""
    add = parser.add_argument
    add("--hardware", type=Path, metavar="FILE", help=hardware)
    _add_seconds(parser, "--torch-timeout", "torch_seconds", TORCH_SECONDS, "time limit for importing torch")
    add("--no-torch", dest="torch", action="store_false", help="do not import torch; skip the checks that need it")
    add("--no-network", dest="network", action="store_false", help="do not use the network; skip checks that need it")


def _add_seconds(parser: Parser, name: str, field: str, default: float, help: str) -> None:
    help = f"{help} (default: {default:g})"
    parser.add_argument(name, dest=field, type=_seconds, default=default, metavar="SECONDS", help=help)


def _refuse_contradictions(options: Options) -> None:
    elsewhere = f"`--yes` would change this machine because of findings in `{options.hardware}`"
    refusals = (
        (options.yes and not options.fix, "`--yes` needs `--fix`", "`--fix --yes` runs the commands"),
        (options.yes and options.hardware, elsewhere, "drop `--yes` to print the commands, or `--hardware`"),
        (
            options.cluster and options.hardware,
            f"`--cluster {options.cluster}` asks machines, and `{options.hardware}` is a recording of one",
            "use one of them",
        ),
        (
            options.cluster and options.fix,
            "`--fix` prints commands for one machine, and `--cluster` diagnoses several",
            "the report has the commands of each finding; or run `rlc doctor --fix` on a node",
        ),
        (options.run_folder and not options.bundle, "`--run` needs `--bundle`", "add `--bundle OUT.zip`"),
        (
            options.fix and options.as_json,
            "`--fix` prints a script, but `--json` prints JSON",
            "the JSON contains the script as `commands`",
        ),
    )
    for refused, fact, hint in refusals:
        if refused:
            raise UsageError(fact, hint=hint)


def _unknown(text: str, parser: Parser) -> UsageError:
    name = text.partition("=")[0]
    if not name.startswith("-"):
        return UsageError(f"unexpected argument `{text}`", hint=f"did you mean `{parser.prog} explain {text}`")
    hint = did_you_mean(name, parser._option_string_actions, f"`{parser.prog} --help` lists the options")
    return UsageError(f"unknown option `{name}`", hint=hint)


def _seconds(text: str) -> float:
    """A positive number. Raises the error that argparse shows."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"`{text}` is not a positive number of seconds")
    return seconds
