"""The command line `rlc`: a table of commands, each imported only when it is asked for.

Every module named in `COMMANDS` exposes `app: typer.Typer`, made with `rl_compat.cli.common.new_app`. A command without
subcommands decorates one function with `@app.command()`; one with subcommands also has an `@app.callback()`. A function
may return an exit code; `None` is 0.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence

import rl_compat
from rl_compat.errors import RLCompatError, UsageError, nearest

COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("probe", "rl_compat.cli.probe", "what this machine is"),
    ("doctor", "rl_compat.cli.doctor", "what is wrong here, why it matters, and the commands that mend it"),
    ("plan", "rl_compat.cli.plan", "what would run here, with reasons, and whether it fits"),
    ("profiles", "rl_compat.cli.profiles", "the hardware profiles and what they prefer"),
    ("translate", "rl_compat.cli.translate", "a command, script or YAML file of verl's as settings of this program"),
    ("train", "rl_compat.cli.train", "train a language model: PPO and its relatives, SFT, DPO, KTO, reward models"),
    ("eval", "rl_compat.cli.eval", "accuracy of a model or a run on held-out prompts"),
    ("export", "rl_compat.cli.export", "write a run's actor as a Hugging Face folder"),
    ("data", "rl_compat.cli.data", "check data before a run, and write it in verl's schema"),
    ("bench", "rl_compat.cli.bench", "how fast the engines that generate are here, on the same prompts"),
    ("models", "rl_compat.cli.models", "models that can be fetched, and fetching them"),
)
"name, module with `app`, what it does in one line"

INTERRUPTED = 130
PIPE_CLOSED = 141


def main(arguments: Sequence[str] | None = None, *, program: str = "rlc") -> int:
    """Run one command and return its exit code: 0 fine, 1 found a problem, 2 asked wrongly, 130 interrupted."""
    try:
        code = dispatch(list(sys.argv[1:] if arguments is None else arguments), program)
        sys.stdout.flush()
        return code
    except RLCompatError as error:
        show_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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

    # bitsandbytes says at import that a kernel for CPUs, which nothing here uses, could not be fetched
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
        asked = program if place is None else place.command_path
        fact = as_fact(error.format_message())  # type: ignore[attr-defined]
        raise UsageError(fact, hint=f"`{asked} --help` lists what it takes") from error
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
        "  --version  show the version",
        "  --help     show this text, or with a command what it takes",
    ]
    return "\n".join(lines)


def unknown_command(name: str, program: str) -> UsageError:
    known = [command for command, _, _ in COMMANDS]
    kind = "option" if name.startswith("-") else "command"
    close = nearest(name, known)
    hint = f"did you mean `{program} {close}`" if close else f"`{program} --help` lists the commands"
    return UsageError(f"there is no {kind} `{name}`", hint=hint)


def as_fact(message: str) -> str:
    """A parser's sentence in our style: lower case at the start, no full stop at the end."""
    text = message.strip().rstrip(".")
    return text[:1].lower() + text[1:]


def show_error(error: RLCompatError) -> None:
    """Fact and hint on stderr; the traceback too when RLC_DEBUG is set."""
    if os.environ.get("RLC_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    print(f"error: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
