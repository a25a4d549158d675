"""`rlc translate`: convert a verl command, script or YAML file to a settings file."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from rl_compat import verl
from rl_compat.cli.common import refuse_other_file
from rl_compat.cli.options import AsJson, new_app
from rl_compat.cli.render import print_json, print_lines, print_note, print_table
from rl_compat.config.load import LoadedConfig, judge_config
from rl_compat.config.report import COLUMNS, WORST_FIRST, KeyVerdict, render_report, worst_first
from rl_compat.errors import UsageError
from rl_compat.units import counted
from rl_compat.verl import read_words
from rl_compat.verl.command import split_program
from rl_compat.verl.settings_file import translated_toml, write_toml

app = new_app()

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="SCRIPT|ARGS...",
        help="A shell script, a YAML file, - for a script on stdin, key=value pairs, or a whole command. "
        "Arguments after a script are passed to it.",
    ),
]


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def translate(
    words: Words,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the settings to FILE instead of stdout."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Convert a verl command, script or YAML file to rlc settings, without running it.

    The settings are written to stdout as TOML. A table on stderr shows what happened to each key, refused keys first.
    The exit code is 1 if a key is refused. `rlc train` accepts the same key=value pairs.

    Example: rlc translate --output run.toml run_grpo.sh trainer.total_epochs=1
    """
    loaded = _judged(words)
    text = translated_toml(loaded)
    if output is not None:
        write_toml(output, text)
    if as_json:
        print_json(_as_json(loaded, text))
    elif output is None:
        print_lines(text.splitlines())
    for note in loaded.notes:
        print_note(f"note: {note}")
    if not as_json:
        print_table("keys", COLUMNS, render_report(worst_first(loaded.report)), stream=sys.stderr)
    print_note(_summary(loaded.report))
    return 1 if any(line.verdict == "refused" for line in loaded.report) else 0


def _judged(words: list[str]) -> LoadedConfig:
    first, *rest = words
    if first == "-" or ("=" not in first and Path(first).is_file()):
        refuse_other_file(first)
        return judge_config(Path(first), rest, dialect=verl)
    if "=" not in first and not first.startswith(("~", "-")) and split_program(words).module is None:
        fact = f"`{first}` is a folder" if first and Path(first).is_dir() else f"file `{first}` does not exist"
        raise UsageError(fact, hint="give a script, a YAML file or `key=value` pairs")
    return judge_config(None, read_words(words), dialect=verl)


def _summary(report: tuple[KeyVerdict, ...]) -> str:
    numbers = Counter(line.verdict for line in report)
    given = [f"{numbers[verdict]} {verdict}" for verdict in WORST_FIRST if numbers[verdict] and verdict != "not given"]
    keys = sum(number for verdict, number in numbers.items() if verdict != "not given")
    return f"{counted(keys, 'key')}: {', '.join(given)}" if keys else "no keys"


def _as_json(loaded: LoadedConfig, text: str) -> dict[str, Any]:
    return {
        "toml": text,
        "notes": list(loaded.notes),
        "keys": [
            {
                "key": line.key,
                "value": line.value,
                "verdict": line.verdict,
                "becomes": line.native_key.split(", ") if line.native_key else [],
                "why": line.reason,
                "hint": line.hint,
            }
            for line in loaded.report
        ],
    }
