"""Parsing of one command: where verl's arguments begin, and Hydra's flags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from rl_compat.config.arguments import Argument, split_argument
from rl_compat.errors import ConfigError
from rl_compat.verl.yaml_file import OWN_CONFIGS, find_yaml, read_yaml

PYTHON = re.compile(r"(.*/)?(python[\d.]*|torchrun|accelerate|debugpy)")
FLAGS_WITH_VALUE = ("--config-name", "--config-path", "--config-dir", "--cfg", "--package")
FLAGS = ("--multirun", "--resolve", "--run")
SHORT = {
    "-cn": "--config-name",
    "-cp": "--config-path",
    "-cd": "--config-dir",
    "-c": "--cfg",
    "-p": "--package",
    "-m": "--multirun",
    "-r": "--run",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The program that a command starts, and its arguments."""

    module: str | None
    "dotted name after `-m` or path of the script; None if there are only arguments"
    arguments: Sequence[str]


def split_program(words: Sequence[str]) -> Program:
    """The module or script that a command runs, after any launcher, and the words that follow it."""
    for position, word in enumerate(words):
        if word == "-m" and position + 1 < len(words) and any(map(PYTHON.fullmatch, words[:position])):
            return Program(module=words[position + 1], arguments=words[position + 2 :])
        if word.endswith(".py") and "=" not in word:
            return Program(module=word, arguments=words[position + 1 :])
    return Program(module=None, arguments=words)


def read_arguments(words: Sequence[str], *, folders: Sequence[Path] = ()) -> tuple[list[Argument], list[str]]:
    """The arguments after the program, preceded by those of the configuration file that they name, and notes.

    `--config-path` is relative to `folders`.
    """
    flags: dict[str, str] = {}
    arguments = list(_taken_apart(words, flags))
    path = find_yaml(flags, folders)
    if path is None:
        return [*(_flag(name, value) for name, value in flags.items()), *arguments], []
    inherited, notes = read_yaml(path)
    told = [f"`{path}` is read, then the arguments", *notes]
    return [*inherited, *arguments], told


def _taken_apart(words: Sequence[str], flags: dict[str, str]) -> Iterator[Argument]:
    rest = iter(words)
    for word in rest:
        name, separator, value = word.partition("=")
        flag = SHORT.get(name, name)
        if flag in FLAGS_WITH_VALUE:
            flags[flag] = value if separator else next(rest, "")
        elif flag in FLAGS:
            flags[flag] = ""
        elif word.startswith("--") and word != "--":
            yield Argument(text=word, key=name, value=value, problem="Hydra has no such flag")
        elif word != "--":
            yield _argument(word)


def _argument(word: str) -> Argument:
    try:
        return split_argument(word)
    except ConfigError as error:
        if re.match(r"[+~]*[\w/]+@[\w.]+=", word):
            key, _, value = word.lstrip("+~").partition("=")
            problem = "verl's config groups have no alternatives here"
            return Argument(text=word, key=key, value=value, problem=problem)
        return Argument(text=word, key=word, value="", problem="it is not of the form `key=value`", hint=error.hint)


def _flag(name: str, value: str) -> Argument:
    argument = Argument(text=f"{name}={value}" if value else name, key=name, value=value)
    if name == "--config-name" and PurePath(value).name.removesuffix(".yaml") not in OWN_CONFIGS:
        hint = "give the file itself: `rlc translate FILE.yaml key=value …`"
        return replace(argument, problem="the configuration file does not exist here", hint=hint)
    return argument
