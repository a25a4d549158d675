"""Assignments of a shell script: `NAME=text`, `NAME+=text`, `NAME=(…)`, `NAME[0]=text`, and `export` before them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rl_compat.verl.shell.expansion import arithmetic, array_items, expand_text
from rl_compat.verl.shell.scope import Scope

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=(.*)", re.S)
DECLARATIONS = ("export", "declare", "typeset", "local", "readonly")


def assign(scope: Scope, word: str) -> None:
    """Execute one assignment."""
    match = ASSIGNMENT.fullmatch(word)
    assert match is not None
    name, item, adds, raw = match[1], match[2], match[3], match[4]
    if raw.startswith("("):
        items = array_items(raw, scope)
        scope.variables[name] = [*(scope.items(name) or []), *items] if adds else items
        return
    value = expand_text(raw, scope)
    if item is not None:
        scope.variables[name] = _with_item(list(scope.items(name) or []), arithmetic(item, scope), value)
    else:
        scope.variables[name] = (scope.get(name) or "") + value if adds else value


def declare(scope: Scope, words: Sequence[str]) -> dict[str, str]:
    """Execute `export`, `local` and similar commands; returns the exported variables and values."""
    exported = {}
    for word in words[1:]:
        if ASSIGNMENT.fullmatch(word):
            assign(scope, word)
        name = re.split(r"\+?=", word)[0]
        if words[0] == "export" and re.fullmatch(r"\w+", name):
            exported[name] = scope.get(name) or ""
    return exported


def own_environment(scope: Scope, words: Sequence[str]) -> dict[str, str]:
    """The variables that are assigned in front of a command and apply only to it."""
    pairs = [match for word in words if (match := ASSIGNMENT.fullmatch(word))]
    return {match[1]: expand_text(match[4], scope) for match in pairs}


def _with_item(items: list[str], number: str, value: str) -> list[str]:
    position = min(int(number), len(items)) if number.isdigit() else len(items)
    items[position : position + 1] = [value]
    return items
