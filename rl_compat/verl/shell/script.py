"""A shell script read without running it: which programs it would start, with which arguments and environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_compat.verl.shell.reader import Reader, Started


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadScript:
    """What reading a script gave."""

    started: Sequence[Started]
    exported: Mapping[str, str]
    notes: Sequence[str]
    reads_arguments: bool


def read_script(
    text: str,
    *,
    name: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    doubtful: bool = False,
) -> ReadScript:
    """Follow a script with these arguments and environment. `folder` is where other scripts are looked for.

    A condition that only running would decide counts as `doubtful`. Raises ConfigError for what is not a shell script.
    """
    reader = Reader(name=name, folder=folder, environment=environment, arguments=arguments, doubtful=doubtful)
    reader.run(text)
    return ReadScript(
        started=reader.started,
        exported=reader.exported,
        notes=list(dict.fromkeys(reader.notes)),
        reads_arguments=reader.scope.reads_arguments,
    )
