"""Commands that a reader of scripts executes itself: builtins, conditions, and output and status of harmless commands.

No process is started.
"""

from __future__ import annotations

import fnmatch
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from rl_compat.verl.shell.scope import mark_of, unknown, without_unset
from rl_compat.verl.shell.syntax import Simple, parse_script

if TYPE_CHECKING:
    from rl_compat.verl.shell.script import ReadScript


class Stop(Exception):  # noqa: N818
    """Ends the script, a function or a loop."""

    def __init__(self, kind: str, words: list[str] | None = None) -> None:
        super().__init__(kind)
        self.kind = kind
        self.is_failure = kind == "exit" and words not in (None, ["0"])
        "whether a script stops because something is missing"


Builtin = Callable[["ReadScript", list[str], int], "bool | None"]
"executes a builtin, given its words and line, and returns its status; None if unknown"


def _test(shell: ReadScript, words: list[str], line: int) -> bool | None:
    return decide(words[:-1] if words[-1:] == ["]"] else words, patterns=False, doubtful=shell.doubtful)


def _change_folder(shell: ReadScript, words: list[str], line: int) -> bool | None:
    target = next((word for word in words if word != "--"), str(Path.home()))
    shell.cwd = shell.cwd / target
    return True


def _print_folder(shell: ReadScript, words: list[str], line: int) -> bool | None:
    shell.print(str(shell.cwd.resolve()))
    return True


def _stop(kind: str) -> Builtin:
    def builtin(shell: ReadScript, words: list[str], line: int) -> bool | None:
        raise Stop(kind, words)

    return builtin


def _shift(shell: ReadScript, words: list[str], line: int) -> bool | None:
    number = int(words[0]) if words and words[0].isdigit() else 1
    enough = number <= len(shell.scope.arguments)
    if enough:
        del shell.scope.arguments[:number]
    return enough


def _set(shell: ReadScript, words: list[str], line: int) -> bool | None:
    if "--" in words:
        shell.scope.arguments = words[words.index("--") + 1 :]
    return True


def _unset(shell: ReadScript, words: list[str], line: int) -> bool | None:
    for word in words:
        shell.scope.variables.pop(word, None)
        shell.scope.environment = {name: text for name, text in shell.scope.environment.items() if name != word}
    return True


def _source(shell: ReadScript, words: list[str], line: int) -> bool | None:
    path = shell.find(words[0]) if words else None
    if path is None:
        shell.note(line, f"`{' '.join(words)}` is missing and is skipped")
    else:
        shell.source(path)
    return True


def _evaluate(shell: ReadScript, words: list[str], line: int) -> bool | None:
    body = parse_script(" ".join(words), shell.name)
    return shell.body([replace(node, line=line) if isinstance(node, Simple) else node for node in body])


def _execute(shell: ReadScript, words: list[str], line: int) -> bool | None:
    if not words:
        return True
    shell.command(words, line, {})
    raise Stop("exit")


def _read(shell: ReadScript, words: list[str], line: int) -> bool | None:
    for word in words:
        if re.fullmatch(r"[A-Za-z_]\w*", word):
            shell.scope.variables[word] = unknown("`read` gets its value when the script runs")
    return None


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
    **dict.fromkeys(
        ("trap", "wait", "ulimit", "shopt", "umask", "sleep", "mkdir", "popd", "let"), lambda shell, words, line: True
    ),
}


def _basename(words: Sequence[str]) -> str:
    names = [word for word in words if word != "--"]
    name = PurePosixPath(names[0]).name
    return name.removesuffix(names[1]) if len(names) > 1 and name != names[1] else name


def _date(words: Sequence[str]) -> str:
    form = next((word[1:] for word in words if word.startswith("+")), "%a %b %e %H:%M:%S %Z %Y")
    return time.strftime(form)


def _echo(words: Sequence[str]) -> str:
    rest = list(words)
    while rest and re.fullmatch("-[neE]+", rest[0]):
        rest.pop(0)
    return " ".join(rest)


def _printf(words: Sequence[str]) -> str:
    form, *values = words
    return re.sub("%[sd]", lambda match: values.pop(0) if values else "", form).replace("\\n", "\n")


OUTPUT: Mapping[str, Callable[[Sequence[str]], str]] = {
    "echo": _echo,
    "printf": _printf,
    "basename": _basename,
    "dirname": lambda words: str(PurePosixPath(next(word for word in words if word != "--")).parent),
    "date": _date,
}
"command to its output for its arguments"


def status_of(words: Sequence[str], *, doubtful: bool) -> bool | None:
    """Whether a command would succeed; None if unknown, as what this machine has installed is if that is `doubtful`."""
    match list(words):
        case ["true" | ":", *_]:
            return True
        case ["false", *_]:
            return False
        case _ if doubtful:
            return None
        case ["command", "-v", name] | ["which", name] | ["type", name] | ["hash", name]:
            return shutil.which(name) is not None
        case [python, "-c", code] if re.fullmatch(r"(.*/)?python[\d.]*", python):
            wanted = re.fullmatch(r"\s*import (\w+)\s*;?\s*", code)
            return find_spec(wanted[1]) is not None if wanted else None
    return None


UNARY: Mapping[str, Callable[[str], bool]] = {
    "-z": lambda text: text == "",
    "-n": lambda text: text != "",
    "-e": lambda text: Path(text).exists(),
    "-f": lambda text: Path(text).is_file(),
    "-d": lambda text: Path(text).is_dir(),
    "-r": lambda text: Path(text).exists(),
    "-s": lambda text: Path(text).is_file() and Path(text).stat().st_size > 0,
}
FILES = [[operation] for operation in UNARY if operation not in ("-z", "-n")]
TEXTS = ("=", "==", "!=")
NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
}


def decide(words: Sequence[str], *, patterns: bool, doubtful: bool) -> bool | None:
    """Whether a condition without its brackets holds; None if unknown. `patterns` is for `[[ … ]]`.

    Conditions on files and on unset variables are unknown if they are `doubtful`: they may hold on another machine.
    """
    for joint in (("-o", "||"), ("-a", "&&")):
        position = _outside(words, joint)
        if position is not None:
            left, right = (
                decide(part, patterns=patterns, doubtful=doubtful) for part in (words[:position], words[position + 1 :])
            )
            deciding = joint[0] == "-o"
            if deciding in (left, right):
                return deciding
            return None if None in (left, right) else not deciding
    if words[:1] == ["!"]:
        inner = decide(words[1:], patterns=patterns, doubtful=doubtful)
        return None if inner is None else not inner
    if len(words) > 2 and words[0] == "(" and words[-1] == ")":
        return decide(words[1:-1], patterns=patterns, doubtful=doubtful)
    if doubtful and (words[:1] in FILES or any(mark_of(word) for word in words)):
        return None
    return _simple([without_unset(word) for word in words], patterns=patterns)


def _simple(words: Sequence[str], *, patterns: bool) -> bool | None:
    if any(mark_of(word) for word in words):
        return None
    match words:
        case []:
            return False
        case [text]:
            return text != ""
        case ["-v", _] | ["-o", _]:
            return None
        case [operation, text] if operation in UNARY:
            return UNARY[operation](text)
        case [left, operation, right] if operation in TEXTS:
            fits = fnmatch.fnmatchcase(left, right) if patterns else left == right
            return fits == (operation != "!=")
        case [left, "=~", right]:
            return _matches(left, right)
        case [left, operation, right] if operation in NUMBERS:
            return NUMBERS[operation](int(left), int(right)) if _whole(left) and _whole(right) else None
    return None


def _matches(text: str, expression: str) -> bool | None:
    try:
        return re.search(expression, text) is not None
    except re.error:
        return None


def _whole(text: str) -> bool:
    return re.fullmatch(r"\s*-?\d+\s*", text) is not None


def _outside(words: Sequence[str], joints: Sequence[str]) -> int | None:
    """The position of an operator between two conditions, outside of brackets."""
    depth = 0
    for position, word in enumerate(words):
        depth += (word == "(") - (word == ")")
        if depth == 0 and word in joints and 0 < position < len(words) - 1 and words[position - 1] != "!":
            return position
    return None
