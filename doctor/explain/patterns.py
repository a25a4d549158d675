"""The table of known errors: their messages, causes and remedies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from rl_compat.doctor.tables.rows import Capability, capability_text
from rl_compat.hardware.gpu.catalogue import capability_of, read_table

SEVERITIES = ("fault", "warning", "performance", "info")
"worst first; only a fault makes the exit code 1"
_ITEM = re.compile(r"\\.|\[\^?\]?[^\]]*\]|\{[^}]*\}|.")
"an escaped character, a set, a number of repetitions, or one character of a pattern"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """A set of compute capabilities: half-open ranges; without ranges, every card."""

    ranges: tuple[tuple[Capability | None, Capability | None], ...] = ()
    only: bool = False
    "whether other cards cannot produce the message at all; otherwise it is rare on them"

    def __contains__(self, capability: Capability) -> bool:
        inside = [(low is None or capability >= low) and (end is None or capability < end) for low, end in self.ranges]
        return any(inside) or not self.ranges

    def __str__(self) -> str:
        """`below 8.0`, `6.0 to below 7.0, or 12.0 and newer`"""
        return ", or ".join(_range_text(low, end) for low, end in self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRemedy:
    """One remedy for an error, and the machines it applies to."""

    what: str
    step: str
    "a name of doctor.findings.Step, in lower case"
    capabilities: Capabilities = Capabilities()
    commands: tuple[str, ...] = ()
    pip_install: tuple[str, ...] = ()
    "arguments of `pip install`"
    pip_uninstall: tuple[str, ...] = ()
    install_torch: bool = False
    "whether to install the torch build for the machine"
    certainty: str = "ready"
    "a name of doctor.findings.Certainty, in lower case"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A message, matched against text without white space, so that wrapped lines do not matter."""

    text: str
    "as in the table"
    regex: re.Pattern[str]
    literal: str
    "in lower case; text without it cannot match"
    whole_line: bool = False
    "whether it has to match a whole line, without its prefix: the text in the table begins with `^`"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultLayer:
    """How deep in the machine an error arises."""

    id: str
    what: str
    depth: int
    "its position, the hardware first"
    follows_from: tuple[str, ...] = ()
    "layers whose faults explain a later one of this layer"
    always_follows_from: tuple[str, ...] = ()
    "the same, in any order in the log"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownError:
    """One row of the table."""

    id: str
    title: str
    patterns: tuple[Pattern, ...]
    sample: str
    component: str
    applies_to: Capabilities
    severity: str
    layer: FaultLayer
    follows_from: tuple[str, ...] = ()
    "ids of errors that explain this one if they come earlier in the log"
    always_follows_from: tuple[str, ...] = ()
    "the same, in any order in the log"
    covers: tuple[str, ...] = ()
    "ids of more general errors to ignore on the lines of this one"
    cause: str
    remedies: tuple[KnownRemedy, ...]
    checks: tuple[str, ...]
    "ids of the checks that examine it on the machine"
    sources: tuple[str, ...]
    date: str
    confidence: str


@cache
def known_errors() -> tuple[KnownError, ...]:
    """Every row, in the order of the tables."""
    table = read_table("errors")
    layers = {row["id"]: FaultLayer(depth=depth, **_with_tuples(row)) for depth, row in enumerate(table["layers"])}
    rows = [*table["errors"], *read_table("errors_distributed")["errors"]]
    return tuple(_known_error(row, layers) for row in rows)


def compile_pattern(text: str) -> Pattern:
    """A pattern of the table, compiled. White space in it matches any amount, including none."""
    whole_line = text.startswith("^")
    squeezed = re.sub(r"(?: |\\s)[*+?]?", "", text.removeprefix("^").removesuffix("$") if whole_line else text)
    return Pattern(text, re.compile(squeezed, re.IGNORECASE), required_literal(squeezed).lower(), whole_line)


def required_literal(pattern: str) -> str:
    """The longest text in every match of a pattern without top-level alternatives."""
    runs, depth = [""], 0
    for item in _ITEM.findall(pattern):
        depth += (item == "(") - (item == ")")
        escaped = item.startswith("\\") and not item[1].isalnum()
        if depth == 0 and (escaped or (len(item) == 1 and item not in "()?*+.|^$")):
            runs[-1] += item[-1]
            continue
        if item[0] in "?*{":
            runs[-1] = runs[-1][:-1]
        runs.append("")
    return max(runs, key=len)


def _known_error(row: Mapping[str, Any], layers: Mapping[str, FaultLayer]) -> KnownError:
    converted = {
        "patterns": tuple(compile_pattern(text) for text in row["patterns"]),
        "applies_to": _capabilities(row["applies_to"]),
        "layer": layers[row["layer"]],
        "remedies": tuple(_remedy(remedy) for remedy in row["remedies"]),
    }
    return KnownError(**_with_tuples({**row, **converted}))


def _remedy(row: Mapping[str, Any]) -> KnownRemedy:
    capability = _capabilities({"capability": row.get("capability")})
    given = {name: value for name, value in row.items() if name != "capability"}
    return KnownRemedy(capabilities=capability, **_with_tuples(given))


def _with_tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}


def _capabilities(row: Mapping[str, Any]) -> Capabilities:
    ranges = tuple(
        (capability_of(low) if low else None, capability_of(end) if end else None)
        for low, end in row["capability"] or ()
    )
    return Capabilities(ranges=ranges, only=row.get("only", False))


def _range_text(low: Capability | None, end: Capability | None) -> str:
    below = f"below {capability_text(end)}" if end else ""
    if low is None:
        return below
    return f"{capability_text(low)} {f'to {below}' if below else 'and newer'}"
