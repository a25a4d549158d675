"""The command line `rlc`: a table of commands, each imported only when it runs.

Every module named in `COMMANDS` exposes `app: typer.Typer`, made with `rl_compat.cli.options.new_app`. A command
without subcommands decorates one function with `@app.command()`; one with subcommands also has an `@app.callback()`. A
function may return an exit code; `None` is 0.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence

import rl_compat
from rl_compat.cli.render import discard, print_note, show_error
from rl_compat.errors import RLCompatError, UsageError, nearest

COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("train", "rl_compat.cli.train", "train a language model: PPO, GRPO, SFT, DPO, KTO, reward models and more"),
    ("eval", "rl_compat.cli.eval", "measure the accuracy of a model or a run on held-out data"),
    ("export", "rl_compat.cli.export", "write the trained model of a run as a Hugging Face folder"),
    ("replay", "rl_compat.cli.replay", "look at the responses that a run has recorded, and write them as one file"),
    ("plan", "rl_compat.cli.plan", "show what would run here, why, and whether it fits in memory"),
    ("settings", "rl_compat.cli.settings", "explain the settings of a run"),
    ("doctor", "rl_compat.cli.doctor", "find what is wrong with this machine and the commands that fix it"),
    ("probe", "rl_compat.cli.probe", "show the hardware and software of this machine"),
    ("profiles", "rl_compat.cli.profiles", "list the hardware profiles and their preferences"),
    ("cluster", "rl_compat.cli.cluster", "start, look at and stop a Ray cluster for runs on several machines"),
    ("timeline", "rl_compat.cli.timeline", "show what ran when in a step of a run, and how long devices were idle"),
    ("models", "rl_compat.cli.models", "list, download and locate models"),
    ("data", "rl_compat.cli.data", "check data before a run, or write it in verl's schema"),
    ("bench", "rl_compat.cli.bench", "measure how fast each rollout engine generates here"),
    ("translate", "rl_compat.cli.translate", "convert a verl command, script or YAML file to rlc settings"),
)
"name, module with `app`, description in one line"

INTERRUPTED = 130
PIPE_CLOSED = 141


def main(arguments: Sequence[str] | None = None, *, program: str = "rlc") -> int:
    """Run one command and return its exit code: 0 success, 1 a problem was found, 2 usage error, 130 interrupted."""
    # read when torch is imported: threads that spin at a barrier take the processor from the thread they wait for
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        code = dispatch(list(sys.argv[1:] if arguments is None else arguments), program)
        sys.stdout.flush()
        return code
    except RLCompatError as error:
        show_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        print_note("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        discard(sys.stdout)
        return PIPE_CLOSED


def dispatch(arguments: list[str], program: str) -> int:
    """The exit code of the command named by the first argument."""
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(usage(program))
        return 0 if arguments else 2
    if arguments[0] in ("--version", "version"):
        print(f"rlc {rl_compat.__version__}")
        return 0
    name, *rest = arguments
    for command, module, _ in COMMANDS:
        if command == name:
            return run_command(module, rest, f"{program} {name}")
    raise unknown_command(name, program)


def run_command(module: str, arguments: list[str], program: str) -> int:
    """Parse the arguments with the module's typer app and call the function they name."""
    import typer

    # on import, bitsandbytes logs that it could not download a CPU kernel, which is not used here
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

    usage_error = typer.BadParameter.__base__
    assert usage_error is not None
    assert issubclass(usage_error, Exception)
    command = typer.main.get_command(importlib.import_module(module).app)
    try:
        with command.make_context(program, arguments) as context:
            result = command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        return INTERRUPTED
    except usage_error as error:
        place = getattr(error, "ctx", None)
        command_path = program if place is None else place.command_path
        text = error.format_message().strip().rstrip(".")  # type: ignore[attr-defined]
        fact = text[:1].lower() + text[1:]
        raise UsageError(fact, hint=f"run `{command_path} --help` for its arguments and options") from error
    return result if isinstance(result, int) else 0


def usage(program: str) -> str:
    """The text of `rlc --help`."""
    width = max((len(name) for name, _, _ in COMMANDS), default=0)
    lines = [
        f"Usage: {program} COMMAND [ARGUMENTS]...",
        "",
        "RL post-training for language models on the GPU you have.",
        "",
        "Commands:",
        *(f"  {name:<{width}}  {what}" for name, _, what in COMMANDS),
        "",
        "Options:",
        "  --version  print the version",
        "  --help     print this text; after a command, print its arguments, options and an example",
        "",
        "Getting started:",
        f"  {program} doctor                      check this machine",
        f"  {program} train sums                  train a tiny model with PPO, about a minute on a CPU",
        f"  {program} eval runs/sums              evaluate the newest checkpoint of that run",
        f"  {program} export runs/sums my-model   write the trained model to the folder my-model",
        "",
        "Exit codes: 0 success, 1 a problem was found, 2 usage error.",
    ]
    return "\n".join(lines)


def unknown_command(name: str, program: str) -> UsageError:
    known = [command for command, _, _ in COMMANDS]
    kind = "option" if name.startswith("-") else "command"
    close = nearest(name, known)
    hint = f"did you mean `{program} {close}`" if close else f"run `{program} --help` for the list of commands"
    return UsageError(f"unknown {kind} `{name}`", hint=hint)
