"""What a shell script knows while it is read: variables, arguments, and marks for what only running it would give."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MARK = re.compile("\0([uk])([^\0]*)\0")
Value = str | list[str]


def unknown(reason: str) -> str:
    """A text that stands for a value that only running the script would give."""
    return f"\0k{reason}\0"


def unset(name: str) -> str:
    """A text that stands for a variable that nothing sets."""
    return f"\0u{name}\0"


def mark_of(text: str) -> re.Match[str] | None:
    """The first mark in a text: group 1 is `u` for unset or `k` for unknown, group 2 the name or the reason."""
    return MARK.search(text)


def without_unset(text: str) -> str:
    """The text as bash has it: what is not set is empty."""
    return re.sub("\0u[^\0]*\0", "", text)


@dataclass(slots=True)
class Scope:
    """Variables by name, the script's arguments, and how a command in `$(…)` is answered."""

    environment: Mapping[str, str]
    substitute: Callable[[str], str]
    "the output of a script in `$(…)`, or a mark"
    script: str = "bash"
    variables: dict[str, Value] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    reads_arguments: bool = False
    "whether anything has looked at the arguments"

    def get(self, name: str) -> str | None:
        """A variable's text, of an array the first item; None when it is not set."""
        if name.isdigit():
            return self._argument(int(name))
        value = self.variables.get(name, self.environment.get(name))
        if isinstance(value, list):
            return value[0] if value else None
        return value

    def items(self, name: str) -> list[str] | None:
        """All items of an array, or of the arguments under `@` and `*`; None when it is not set."""
        if name in ("@", "*"):
            self.reads_arguments = True
            return list(self.arguments)
        value = self.variables.get(name, self.environment.get(name))
        return [value] if isinstance(value, str) else value

    def _argument(self, number: int) -> str | None:
        if number == 0:
            return self.script
        self.reads_arguments = True
        return self.arguments[number - 1] if number <= len(self.arguments) else None
