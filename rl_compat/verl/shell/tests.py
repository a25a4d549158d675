"""Conditions of a shell script: `[ … ]`, `test` and `[[ … ]]`, decided where possible without running it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rl_compat.verl.shell.scope import mark_of, without_unset

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
