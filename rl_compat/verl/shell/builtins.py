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
from typing import TYPE_CHECKING, Literal

from rl_compat.verl.shell.expansion import SPECIFICATION, run_arithmetic, split_at
from rl_compat.verl.shell.scope import BLANKS, mark_of, unknown, without_unset
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
        self.status = words in (None, [], ["0"])
        "what a function returns"


Builtin = Callable[["ReadScript", list[str], int], "bool | None"]
"executes a builtin, given its words and line, and returns its status; None if unknown"


def _test(shell: ReadScript, words: list[str], line: int) -> bool | None:
    return decide(words[:-1] if words[-1:] == ["]"] else words, patterns=False, doubtful=shell.doubtful)


def _change_folder(shell: ReadScript, words: list[str], line: int) -> bool | None:
    target = next((word for word in words if word != "--"), str(Path.home()))
    shell.scope.variables["OLDPWD"] = str(shell.cwd)
    shell.change_folder(shell.cwd / target)
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
    flags, names = _flags(words, "adinNptu")
    names = names or [flags.get("a") or "REPLY"]
    if shell.input is None:
        shell.scope.variables.update(dict.fromkeys(names, unknown("`read` gets its value when the script runs")))
        return None
    whole = flags.get("d") == ""
    text = "\n".join(shell.input) if whole else "".join(shell.input[:1])
    more = bool(shell.input) and not whole
    shell.input = [] if whole else shell.input[1:]
    separators = shell.scope.separators
    text = text.strip("".join(character for character in separators if character in BLANKS))
    if "a" in flags:
        shell.scope.variables[names[0]] = split_at(text, separators) if text else []
        return more
    parts = split_at(text, separators, most=len(names) - 1) if len(names) > 1 else [text]
    shell.scope.variables.update(dict(zip(names, [*parts, *[""] * len(names)], strict=False)))
    return more


def _read_lines(shell: ReadScript, words: list[str], line: int) -> bool | None:
    name = next(iter(_flags(words, "dnOsuCc")[1]), "MAPFILE")
    lines = [unknown(f"`{name}` is read when the script runs")] if shell.input is None else shell.input
    shell.scope.variables[name], shell.input = list(lines), []
    return True


def _flags(words: Sequence[str], with_value: str) -> tuple[dict[str, str], list[str]]:
    """The options of a builtin, and the words after them."""
    flags: dict[str, str] = {}
    rest = list(words)
    while rest and re.fullmatch(r"-[A-Za-z]+", rest[0]):
        letters = rest.pop(0)[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            flags[letter] = ""
            if letter in with_value:
                flags[letter], letters = letters or (rest.pop(0) if rest else ""), ""
    return flags, rest


def _next_option(shell: ReadScript, words: list[str], line: int) -> bool | None:
    """`getopts`, for options that stand alone: `-x`, `-x value`, `-xvalue`."""
    known, name = words[:2]
    number = int(shell.scope.get("OPTIND") or 1)
    word, *rest = [*shell.scope.arguments[number - 1 :], ""]
    shell.scope.reads_arguments = True
    if word == "--" or not re.match("-[A-Za-z0-9]", word):
        shell.scope.variables["OPTIND"] = str(number + (word == "--"))
        return False
    takes = f"{word[1]}:" in known
    value = (word[2:] or rest[0]) if takes else ""
    shell.scope.variables |= {name: word[1] if word[1] in known else "?", "OPTARG": value}
    shell.scope.variables["OPTIND"] = str(number + (2 if takes and not word[2:] else 1))
    return True


def _let(shell: ReadScript, words: list[str], line: int) -> bool | None:
    status: bool | None = True
    for word in words:
        status = run_arithmetic(word, shell.scope)
    return status


def _print_form(shell: ReadScript, words: list[str], line: int) -> bool | None:
    if words[:1] == ["-v"] and len(words) > 2:
        shell.scope.variables[words[1]] = _printf(words[2:])
    elif words:
        shell.print(_printf(words))
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
    "mapfile": _read_lines,
    "readarray": _read_lines,
    "let": _let,
    "getopts": _next_option,
    "printf": _print_form,
    **dict.fromkeys(
        ("trap", "wait", "ulimit", "shopt", "umask", "sleep", "mkdir", "popd"), lambda shell, words, line: True
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
    """The form filled with the values, as often as there are values for it."""
    form, *values = words
    text = SPECIFICATION.sub(lambda match: _filled(match, values), form)
    while values and len(values) < len(words) - 1:
        left = len(values)
        text += SPECIFICATION.sub(lambda match: _filled(match, values), form)
        assert len(values) < left
    return text.replace("\\n", "\n").replace("\\t", "\t")


def _filled(match: re.Match[str], values: list[str]) -> str:
    kind = match["kind"]
    if kind == "%":
        return "%"
    value = values.pop(0) if values else ""
    if mark_of(value) or kind == "s":
        return value if mark_of(value) else f"%{match['flags']}s" % value
    try:
        return f"%{match['flags']}{kind}" % (int(value or 0) if kind in "diuxX" else float(value or 0))
    except ValueError:
        return unknown(f"`printf` cannot write `{value}` as `{match[0]}`")


def _sequence(words: Sequence[str]) -> str:
    numbers = [int(word) for word in words if _whole(word)]
    if len(numbers) != len(words) or not 1 <= len(numbers) <= 3:
        return unknown(f"`seq {' '.join(words)}` is not executed")
    first, step, last = {1: [1, 1, *numbers], 2: [numbers[0], 1, numbers[-1]]}.get(len(numbers), numbers)
    return "\n".join(map(str, range(first, last + (1 if step > 0 else -1), step or 1)))


OUTPUT: Mapping[str, Callable[[Sequence[str]], str]] = {
    "echo": _echo,
    "basename": _basename,
    "dirname": lambda words: str(PurePosixPath(next(word for word in words if word != "--")).parent),
    "date": _date,
    "seq": _sequence,
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
            found = matched(left, right)
            return None if found is None else bool(found)
        case [left, "<" | ">" as operation, right]:
            return left != right and (left < right) == (operation == "<")
        case [left, operation, right] if operation in NUMBERS:
            return NUMBERS[operation](int(left), int(right)) if _whole(left) and _whole(right) else None
    return None


def matched(text: str, expression: str) -> re.Match[str] | Literal[False] | None:
    """The match of `[[ text =~ expression ]]`, False if there is none; None for one that cannot be read."""
    try:
        return re.search(expression, text) or False
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
