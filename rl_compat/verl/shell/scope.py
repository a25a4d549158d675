"""The state of a shell script: variables, arguments, and marks for values that only a run can determine; its output."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

MARK = re.compile("\0([uk])([^\0]*)\0")
BLANKS = " \t\n"
Value = str | list[str] | dict[str, str]
"text, an array, or an array with names, of `declare -A`"


def unknown(reason: str) -> str:
    """A mark for a value that only a run of the script can determine."""
    return f"\0k{reason}\0"


def unset(name: str) -> str:
    """A mark for an unset variable."""
    return f"\0u{name}\0"


def mark_of(text: str) -> re.Match[str] | None:
    """The first mark in a text: group 1 is `u` for unset or `k` for unknown, group 2 the name or the reason."""
    return MARK.search(text)


def without_unset(text: str) -> str:
    """The text as in bash, where unset variables are empty."""
    return re.sub("\0u[^\0]*\0", "", text)


@dataclass(slots=True)
class Scope:
    """Variables by name, the script's arguments, and a function for commands in `$(…)`."""

    environment: Mapping[str, str]
    substitute: Callable[[str], str]
    "the output of a script in `$(…)`, or a mark"
    script: str = "bash"
    variables: dict[str, Value] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    hidden: dict[str, Value | None] | None = None
    "what the local variables of a function hide; None outside of functions"
    status: str = "0"
    "of the last command, as `$?`"
    reads_arguments: bool = False
    "whether the script has read its arguments"

    def get(self, name: str) -> str | None:
        """The text of a variable, or the first item of an array; None if it is not set."""
        if name.isdigit():
            return self._argument(int(name))
        value = self.variables.get(name, self.environment.get(name))
        if isinstance(value, list):
            return value[0] if value else None
        return value.get("0") if isinstance(value, dict) else value

    def item(self, name: str, key: str) -> str | None:
        """An item of an array with names."""
        value = self.variables.get(name)
        return value.get(key) if isinstance(value, dict) else None

    def has_names(self, name: str) -> bool:
        return isinstance(self.variables.get(name), dict)

    def keys(self, name: str) -> list[str]:
        """The names or the positions of the items of an array."""
        value = self.variables.get(name, self.environment.get(name))
        return list(value) if isinstance(value, dict) else [str(index) for index in range(len(self.items(name) or []))]

    def hide(self, name: str) -> None:
        """Make a variable local to the function that runs."""
        if self.hidden is not None and name not in self.hidden:
            self.hidden[name] = self.variables.get(name)

    def show(self, hidden: Mapping[str, Value | None]) -> None:
        """Give variables the values back that a function hid."""
        for name, value in hidden.items():
            if value is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = value

    @property
    def separators(self) -> str:
        """The characters at which bash splits words."""
        found = self.variables.get("IFS", BLANKS)
        return found if isinstance(found, str) else BLANKS

    def items(self, name: str) -> list[str] | None:
        """All items of an array, or of the arguments for `@` and `*`; None if it is not set."""
        if name in ("@", "*"):
            self.reads_arguments = True
            return list(self.arguments)
        value = self.variables.get(name, self.environment.get(name))
        if isinstance(value, dict):
            return list(value.values())
        return [value] if isinstance(value, str) else value

    def _argument(self, number: int) -> str | None:
        if number == 0:
            return self.script
        self.reads_arguments = True
        return self.arguments[number - 1] if number <= len(self.arguments) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A program that a script would start."""

    words: Sequence[str]
    "arguments that only a run can determine contain a mark"
    line: int
    script: str
    environment: Mapping[str, str]
    "variables set only for this program"


@dataclass(slots=True)
class Output:
    """The output of a script in `$(…)`."""

    texts: list[str] = field(default_factory=list)
    is_known: bool = True
