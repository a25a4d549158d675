"""The doctor's arguments: what may be asked, and what is refused."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rl_compat.doctor.report.paper import USUAL
from rl_compat.errors import UsageError, nearest

TORCH_SECONDS = 60.0
NETWORK_SECONDS = 5.0

ABOUT = """\
What is wrong with this machine for training, why it matters, and the commands that mend it.

`python3 doctor` needs the standard library alone: it works in a checkout before anything is
installed. torch is looked at in a child process, so that a broken one is a finding."""
EXAMPLES = """\
examples:
  {program}                            diagnose this machine
  {program} --all                      also what is fine
  {program} --only torch,driver        ask only these; --list names them
  {program} --fix                      print the commands; --fix --yes runs pip's part of them
  {program} --hardware p40.json        diagnose a recording of another machine
  {program} explain error.log          the real cause of an error text

exit codes: 0 nothing worse than a warning, 1 a failure, 2 asked wrongly, 130 interrupted"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked."""

    only: tuple[str, ...] = ()
    "ids of checks; all of them when empty"
    listed: bool = False
    show_all: bool = False
    as_json: bool = False
    hardware: Path | None = None
    torch: bool = True
    torch_seconds: float = TORCH_SECONDS
    network: bool = True
    network_seconds: float = NETWORK_SECONDS
    fix: bool = False
    yes: bool = False
    bundle: Path | None = None
    run_folder: Path | None = None


class Parser(argparse.ArgumentParser):
    """argparse with the errors of this project."""

    def error(self, message: str) -> NoReturn:
        fact = re.sub(r"argument (\S+): ", r"`\1`: ", message).replace("'", "`").rstrip(".")
        raise UsageError(fact, hint=f"`{self.prog} --help` lists what it takes")


class Help(argparse.RawDescriptionHelpFormatter):
    """As wide as a report, and usage with a capital, as the other commands have it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=USUAL)

    def add_usage(self, usage, actions, groups, prefix=None):  # type: ignore[no-untyped-def]
        super().add_usage(usage, actions, groups, "Usage: " if prefix is None else prefix)


def parse(arguments: Sequence[str], program: str) -> Options:
    """The options. Raises UsageError; `--help` prints and raises SystemExit."""
    parser = build_parser(program)
    known, strangers = parser.parse_known_args(list(arguments))
    if strangers:
        raise _stranger(strangers[0], parser)
    options = Options(
        only=tuple(id for text in known.only for id in re.split(r"[,\s]+", text) if id),
        listed=known.list,
        show_all=known.all,
        as_json=known.json,
        hardware=known.hardware,
        torch=not known.no_torch,
        torch_seconds=known.torch_timeout,
        network=not known.no_network,
        network_seconds=known.network_timeout,
        fix=known.fix,
        yes=known.yes,
        bundle=known.bundle,
        run_folder=known.run,
    )
    _refuse_contradictions(options)
    return options


def build_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        description=ABOUT,
        epilog=EXAMPLES.format(program=program),
        formatter_class=Help,
        allow_abbrev=False,
        usage=f"{program} [OPTION]...\n       {program} explain [FILE|-]",
    )
    add = parser.add_argument
    add("--list", action="store_true", help="list the checks and stop")
    add("--only", action="append", default=[], metavar="ID[,ID]", help="run only these checks; may be repeated")
    add("--all", action="store_true", help="also show what is fine")
    add("--json", action="store_true", help="print JSON, schema rlc.doctor/1")
    add("--hardware", type=Path, metavar="FILE", help="diagnose a recording made by `rlc probe --json`")
    add(
        "--torch-timeout",
        type=parse_seconds,
        default=TORCH_SECONDS,
        metavar="SECONDS",
        help=f"give torch so long to answer, {TORCH_SECONDS:g} when not given",
    )
    add("--no-torch", action="store_true", help="leave torch alone, and out the checks that need it")
    add(
        "--network-timeout",
        type=parse_seconds,
        default=NETWORK_SECONDS,
        metavar="SECONDS",
        help=f"give servers so long to answer, {NETWORK_SECONDS:g} when not given",
    )
    add("--no-network", action="store_true", help="leave the network alone, and out the checks that need it")
    add("--fix", action="store_true", help="print the commands that mend the machine as a script")
    add("--yes", action="store_true", help="with --fix: run those that change this virtual environment, no others")
    add("--bundle", type=Path, metavar="OUT.zip", help="also write what a bug report needs, names replaced")
    add("--run", type=Path, metavar="FOLDER", help="with --bundle: the run to take the plan and the log's end from")
    return parser


def _refuse_contradictions(options: Options) -> None:
    if options.yes and not options.fix:
        raise UsageError("`--yes` is given without `--fix`", hint="`--fix --yes` runs the commands")
    if options.yes and options.hardware is not None:
        raise UsageError(
            f"`--yes` would mend this machine with what was found in `{options.hardware}`",
            hint="leave out `--yes` to print the commands, or `--hardware` to mend this machine",
        )
    if options.run_folder is not None and options.bundle is None:
        raise UsageError("`--run` is given without `--bundle`", hint="give `--bundle OUT.zip` too")
    if options.fix and options.as_json:
        raise UsageError(
            "`--fix` prints a script and `--json` prints JSON", hint="the JSON has the script as `commands`"
        )


def _stranger(text: str, parser: Parser) -> UsageError:
    name = text.partition("=")[0]
    if not name.startswith("-"):
        return UsageError(
            f"`{text}` is not an option, and the doctor takes no other argument",
            hint=f"did you mean `{parser.prog} explain {text}`",
        )
    close = nearest(name, parser._option_string_actions)
    hint = f"did you mean `{close}`" if close else f"`{parser.prog} --help` lists what it takes"
    return UsageError(f"there is no option `{name}`", hint=hint)


def parse_seconds(text: str) -> float:
    """A positive number. Raises the error that argparse shows."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"`{text}` is not a positive number of seconds")
    return seconds
