"""Shell builtins that affect which programs a script starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rl_compat.verl.shell.scope import Scope, unknown
from rl_compat.verl.shell.syntax import Body, Simple, parse_script
from rl_compat.verl.shell.tests import decide


class Stop(Exception):  # noqa: N818
    """Ends the script, a function or a loop."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Shell(Protocol):
    """What a builtin can read and change: the reader of a script."""

    scope: Scope
    cwd: Path
    name: str

    @property
    def is_silent(self) -> bool:
        """Whether no program was started yet and no output is captured."""

    def body(self, body: Body) -> bool | None:
        """Follow commands; the status of the last one."""

    def command(self, words: list[str], line: int, own: Mapping[str, str]) -> bool | None:
        """Follow one command."""

    def source(self, path: Path) -> None:
        """Read another script in this scope."""

    def find(self, text: str) -> Path | None:
        """The file of that name."""

    def print(self, text: str) -> None:
        """Print into the captured output."""

    def note(self, line: int, text: str) -> None:
        """Note what a reader of the translation should know."""


Builtin = Callable[[Shell, list[str], int], "bool | None"]
"executes a builtin, given its words and line, and returns its status; None if unknown"


def _test(shell: Shell, words: list[str], line: int) -> bool | None:
    return decide(words[:-1] if words[-1:] == ["]"] else words, patterns=False)


def _change_folder(shell: Shell, words: list[str], line: int) -> bool | None:
    target = next((word for word in words if word != "--"), str(Path.home()))
    shell.cwd = shell.cwd / target
    return True


def _print_folder(shell: Shell, words: list[str], line: int) -> bool | None:
    shell.print(str(shell.cwd.resolve()))
    return True


def _stop(kind: str) -> Builtin:
    def builtin(shell: Shell, words: list[str], line: int) -> bool | None:
        if kind == "exit" and shell.is_silent and words not in ([], ["0"]):
            shell.note(line, "the script stops here")
        raise Stop(kind)

    return builtin


def _shift(shell: Shell, words: list[str], line: int) -> bool | None:
    number = int(words[0]) if words and words[0].isdigit() else 1
    enough = number <= len(shell.scope.arguments)
    if enough:
        del shell.scope.arguments[:number]
    return enough


def _set(shell: Shell, words: list[str], line: int) -> bool | None:
    if "--" in words:
        shell.scope.arguments = words[words.index("--") + 1 :]
    return True


def _unset(shell: Shell, words: list[str], line: int) -> bool | None:
    for word in words:
        shell.scope.variables.pop(word, None)
        shell.scope.environment = {name: text for name, text in shell.scope.environment.items() if name != word}
    return True


def _source(shell: Shell, words: list[str], line: int) -> bool | None:
    path = shell.find(words[0]) if words else None
    if path is None:
        shell.note(line, f"`{' '.join(words)}` is missing and is skipped")
    else:
        shell.source(path)
    return True


def _evaluate(shell: Shell, words: list[str], line: int) -> bool | None:
    body = parse_script(" ".join(words), shell.name)
    return shell.body([replace(node, line=line) if isinstance(node, Simple) else node for node in body])


def _execute(shell: Shell, words: list[str], line: int) -> bool | None:
    if not words:
        return True
    shell.command(words, line, {})
    raise Stop("exit")


def _read(shell: Shell, words: list[str], line: int) -> bool | None:
    for word in words:
        if re.fullmatch(r"[A-Za-z_]\w*", word):
            shell.scope.variables[word] = unknown("`read` gets its value when the script runs")
    return None


def _nothing(shell: Shell, words: list[str], line: int) -> bool | None:
    return True


BUILTINS: Mapping[str, Builtin] = {
    "[": _test,
    "test": _test,
    "cd": _change_folder,
    "pushd": _change_folder,
    "pwd": _print_folder,
    "exit": _stop("exit"),
    "return": _stop("return"),
    "break": _stop("break"),
    "continue": _stop("continue"),
    "shift": _shift,
    "set": _set,
    "unset": _unset,
    "source": _source,
    ".": _source,
    "eval": _evaluate,
    "exec": _execute,
    "read": _read,
    **dict.fromkeys(("trap", "wait", "ulimit", "shopt", "umask", "sleep", "mkdir", "popd", "let"), _nothing),
}
