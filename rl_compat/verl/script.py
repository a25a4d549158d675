"""The training command of a shell script written for verl."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from rl_compat.config.arguments import Argument, split_argument
from rl_compat.errors import ConfigError
from rl_compat.verl.command import Program, read_arguments, split_program
from rl_compat.verl.shell.scope import Started, mark_of, without_unset
from rl_compat.verl.shell.script import ReadScript
from rl_compat.verl.translate import is_key

TRAINERS = ("main_ppo", "main_dapo", "fully_async_main", "main_ppo_split")
NOT_TRAINERS = re.compile(r"sft|eval|generation|merge|preprocess|server|rollout_main")
STRAY = re.compile(r"[+~]*[A-Za-z_]\w*(\.\w+)+=")
SECTIONS = ("data.", "actor_rollout_ref.", "algorithm.", "trainer.", "critic.", "reward")
SUPERVISED = "set `algorithm.name=sft` and `data.train_files` in a settings file"
MOST_LISTED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCommand:
    """A training command, with its launcher."""

    started: Started
    program: Program


def read_training(text: str, *, name: str, folder: Path, words: Sequence[str]) -> tuple[list[Argument], list[str]]:
    """The arguments of the script's training command, and notes on how it was read.

    `words` are the script's own arguments. Raises ConfigError when it has no such command.
    """
    script, found = _read(text, name, folder, words)
    if not found:
        raise _nothing_found(name, script.started)
    chosen = found[0]
    given, told = [*chosen.program.arguments], [*script.notes]
    reads = script.scope.reads_arguments
    dropped = [word for word in words if word not in given and (STRAY.match(word) or not reads)]
    if dropped:
        given += dropped
        told.append(f"`{name}` does not pass on its arguments; {_quoted(dropped)} added to its command")
    arguments, notes = read_arguments([_without_marks(word) for word in given], folders=[folder, Path.cwd()])
    problems = {_without_marks(word): word for word in given if mark_of(word)}
    return [_with_problem(argument, problems.get(argument.text)) for argument in arguments], [
        _chosen(name, chosen, found),
        *told,
        *notes,
        *_stray(script.started),
        *_environment(script, chosen),
    ]


def _read(text: str, name: str, folder: Path, words: Sequence[str]) -> tuple[ReadScript, list[TrainingCommand]]:
    """The script read with undecidable conditions as false, or as true if it would otherwise train nothing."""
    for doubtful in (False, True):
        script = ReadScript(name=name, arguments=words, environment=os.environ, folder=folder, doubtful=doubtful)
        script.run(text)
        found = [training for started in script.started if (training := _training(started)) is not None]
        if found:
            break
    return script, found


def _training(started: Started) -> TrainingCommand | None:
    program = split_program([without_unset(word) for word in started.words])
    module = program.module
    if module is None:
        return None
    program = split_program(started.words)
    last = PurePath(module).stem if module.endswith(".py") else module.rpartition(".")[2]
    ours = sum(word.lstrip("+~").startswith(SECTIONS) for word in program.arguments)
    is_training = last in TRAINERS or (ours >= 2 and NOT_TRAINERS.search(last) is None)
    return TrainingCommand(started=started, program=program) if is_training else None


def check_program(module: str | None) -> None:
    """Raise ConfigError for a program that does not train with RL, such as SFT, merging or evaluation."""
    last = (module or "").removesuffix(".py").replace("/", ".").rpartition(".")[2]
    if last not in TRAINERS and NOT_TRAINERS.search(last):
        hint = SUPERVISED if "sft" in last else "give the command that trains"
        raise ConfigError(f"the keys of `{module}` are not those of RL training", hint=hint)


def _nothing_found(name: str, started: Sequence[Started]) -> ConfigError:
    modules = [module for command in started if (module := split_program(command.words).module) is not None]
    supervised = next((module for module in modules if "sft" in module), None)
    if supervised:
        return ConfigError(f"`{name}` runs `{supervised}`, whose keys are not those of RL training", hint=SUPERVISED)
    commands = [split_program(command.words).module or command.words[0] for command in started]
    programs = list(dict.fromkeys(commands))[:MOST_LISTED]
    what = f"; it runs {_quoted(programs)}" if programs else ""
    hint = "a training command is `python3 -m verl.trainer.main_ppo key=value …`"
    return ConfigError(f"`{name}` has no training command{what}", hint=hint)


def _chosen(name: str, chosen: TrainingCommand, found: Sequence[TrainingCommand]) -> str:
    place = f"`{chosen.program.module}` in line {chosen.started.line} of `{chosen.started.script}`"
    if len(found) == 1:
        return f"the training command is {place}"
    others = ", ".join(str(other.started.line) for other in found[1:])
    return f"`{name}` trains {len(found)} times; {place} is read, not line {others}"


def _stray(started: Sequence[Started]) -> list[str]:
    """Notes on keys that a comment, a pipe or a line without `\\` cut off, so that bash gives them to no training."""
    notes = []
    for command in started:
        keys = [word for word in command.words if STRAY.match(word) and is_key(split_argument(word).key)]
        if keys and split_program(command.words).module is None:
            other = command.words[0]
            where = "outside of the command" if other in keys else f"given to `{_without_marks(other)}`"
            notes.append(f"line {command.line}: {_quoted(keys)} {where}; ignored, as in bash")
    return notes


def _environment(script: ReadScript, chosen: TrainingCommand) -> list[str]:
    names = [*script.exported, *chosen.started.environment]
    return [f"the script sets {_quoted(dict.fromkeys(names))} for its program; nothing is set here"] if names else []


def _with_problem(argument: Argument, word: str | None) -> Argument:
    mark = mark_of(word or "")
    if mark is None:
        return argument
    if mark[1] == "u":
        reason, hint = f"`${mark[2]}` is not set", f"set it before the command: `{mark[2]}=… rlc …`"
    else:
        reason, hint = mark[2], f"give `{argument.key}=…` after the script"
    return Argument(
        text=argument.text, key=argument.key, value=argument.value, deletes=argument.deletes, problem=reason, hint=hint
    )


def _without_marks(word: str) -> str:
    """A word with unknown values shown as in the script."""
    while mark := mark_of(word):
        shown = f"${mark[2]}" if mark[1] == "u" else (re.search("`(.*)`", mark[2]) or ["", "?"])[1]
        word = word[: mark.start()] + shown + word[mark.end() :]
    return word


def _quoted(words: Sequence[str] | dict[str, None]) -> str:
    return ", ".join(f"`{_without_marks(word)}`" for word in words)
