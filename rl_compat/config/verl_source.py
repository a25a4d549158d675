"""What a person has of verl's: arguments, a whole command, a YAML file or a shell script, as arguments and notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_compat.config.arguments import Argument
from rl_compat.config.verl_command import read_arguments, split_program
from rl_compat.config.verl_yaml import read_yaml

YAML_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Arguments in their order, and what a reader should know of how they were found."""

    arguments: Sequence[Argument]
    notes: Sequence[str] = ()


def read_words(words: Sequence[str]) -> Source:
    """Arguments alone, or a whole command such as `python3 -m verl.trainer.main_ppo data.train_batch_size=8`."""
    arguments, notes = read_arguments(split_program(words).arguments, folders=[Path.cwd()])
    return Source(arguments=arguments, notes=notes)


def read_file(path: Path, words: Sequence[str] = ()) -> Source:
    """A YAML file, with arguments after it. Raises ConfigError."""
    inherited, told = read_yaml(path)
    arguments, notes = read_arguments(words)
    return Source(arguments=[*inherited, *arguments], notes=[*told, *notes])


def is_verl_file(path: Path) -> bool:
    """Whether a file is read as one of verl's rather than as TOML."""
    return path.suffix.lower() in YAML_SUFFIXES
