"""verl's arguments, commands, scripts and YAML files as settings. The package is a `Dialect` for `load_config`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rl_compat.config.dialect import ForeignArguments
from rl_compat.errors import ConfigError
from rl_compat.verl.command import read_arguments, split_program
from rl_compat.verl.script import check_program, read_training
from rl_compat.verl.translate import default_text, defaults_that_differ, expand, is_key, nearest_key, translate
from rl_compat.verl.yaml_file import read_yaml

__all__ = [
    "default_text",
    "defaults_that_differ",
    "expand",
    "is_file",
    "is_key",
    "nearest_key",
    "read_file",
    "read_words",
    "translate",
]

YAML_SUFFIXES = (".yaml", ".yml")
SCRIPT_SUFFIXES = (".sh", ".bash")
STDIN = Path("-")


def read_words(words: Sequence[str]) -> ForeignArguments:
    """Only arguments, or a whole command such as `python3 -m verl.trainer.main_ppo data.train_batch_size=8`.

    Raises ConfigError for a command that trains nothing with RL.
    """
    program = split_program(words)
    check_program(program.module)
    arguments, notes = read_arguments(program.arguments, folders=[Path.cwd()])
    return ForeignArguments(arguments=arguments, notes=notes)


def read_file(path: Path, words: Sequence[str] = ()) -> ForeignArguments:
    """A YAML file followed by arguments, or a shell script with its own arguments; `-` is a script on stdin.

    Raises ConfigError.
    """
    if path.suffix.lower() in YAML_SUFFIXES:
        inherited, told = read_yaml(path)
        arguments, notes = read_arguments(words)
        return ForeignArguments(arguments=[*inherited, *arguments], notes=[*told, *notes])
    name, folder = (path.name, path.parent) if path != STDIN else ("stdin", Path.cwd())
    arguments, notes = read_training(_text(path), name=name, folder=folder, words=words)
    return ForeignArguments(arguments=arguments, notes=notes)


def is_file(path: Path) -> bool:
    """Whether a file is a verl file and not TOML, by its suffix or, for a script, its first line."""
    if path == STDIN or path.suffix.lower() in (*YAML_SUFFIXES, *SCRIPT_SUFFIXES):
        return True
    try:
        with path.open("rb") as file:
            return path.suffix.lower() != ".toml" and file.read(2) == b"#!"
    except OSError:
        return False


def _text(path: Path) -> str:
    if path == STDIN:
        return sys.stdin.read()
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"`{path}` is not text in UTF-8", hint="give a shell script or a YAML file") from error
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror}") from error
