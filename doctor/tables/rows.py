"""Questions to the tables of published facts: the row of an installed version."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rl_compat.capability.binaries import Version, parse_version, wheel_supports
from rl_compat.hardware.gpu.catalogue import capability_of, read_table

Row = Mapping[str, Any]
Capability = tuple[int, int]


def capability_text(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


@lru_cache(maxsize=4096)
def satisfies(version: str, bounds: str | None) -> bool:
    """Whether a version satisfies `<3.13,>=3.9` or `!=5.0.*,>=4.56`; without bounds every version does.

    `==2.14.0` matches any local part (`2.14.0+cu130`). Raises ValueError for other forms.
    """
    parts = [bound.strip() for bound in (bounds or "").split(",")]
    return all(_satisfies(parse_version(version), bound) for bound in parts if bound)


def _satisfies(version: Version, bound: str) -> bool:
    match = re.fullmatch(r"(==|!=|>=|<=|<|>)\s*([0-9]+(?:\.[0-9]+)*)(\.\*)?(?:\.?(?:post|rc|a|b)[0-9]+)?", bound)
    if match is None:
        raise ValueError(f"`{bound}` is not a version bound")
    operator, wanted, star = match.group(1), parse_version(match.group(2)), match.group(3)
    width = len(wanted) if star else max(len(version), len(wanted))
    mine, theirs = _padded(version, width), _padded(wanted, width)
    answers = {"==": mine == theirs, "!=": mine != theirs, ">=": mine >= theirs, "<=": mine <= theirs}
    return answers.get(operator, mine < theirs if operator == "<" else mine > theirs)


def _padded(version: Version, width: int) -> Version:
    return (*version, *[0] * width)[:width]


def row_for(rows: Sequence[Row], version: str, key: str = "version_min") -> Row | None:
    """The row of the newest release up to `version`; None before the first."""
    known = sorted(rows, key=lambda row: parse_version(row[key]))
    fitting = [row for row in known if parse_version(row[key]) <= parse_version(version)]
    return fitting[-1] if fitting else None


def newest_known(package: str) -> str | None:
    """The newest release in the tables."""
    rows = read_table("libs")["newest"]
    return next((str(row["version"]) for row in rows if row["package"] == package), None)


def is_unknown(package: str, version: str) -> bool:
    """Whether a version is newer than the tables, so that nothing is known about it."""
    newest = newest_known(package)
    return newest is not None and parse_version(version) > parse_version(newest)


def serves(archs: Sequence[int], capability: Capability, *, cuda: str | None = None) -> bool:
    """Whether a library with that machine code supports a card."""
    return wheel_supports([f"sm_{arch}" for arch in archs], capability, cuda=cuda)


def within(row: Row, capability: Capability) -> bool:
    """Whether a capability lies within `cc_min` and `cc_max` of a row; null means no bound."""
    low, high = row.get("cc_min"), row.get("cc_max")
    return (low is None or capability >= capability_of(low)) and (high is None or capability <= capability_of(high))


def kernel_row(package: str, version: str) -> Row | None:
    """The row of a version of a package of GPU kernels."""
    rows = [row for row in read_table("libs")["kernels"] if row["package"] == package]
    found = row_for(rows, version)
    end = found and found["version_max"]
    return None if found is None or (end and parse_version(version) > parse_version(end)) else found


def has_kernels(row: Row, capability: Capability) -> bool:
    """Whether a card is within the bounds of a package, and its wheel, if its code is listed, supports it."""
    return within(row, capability) and ("archs" not in row or serves(row["archs"], capability))


def library_row(package: str, version: str) -> Row | None:
    """The row with the GPU code of a version of a CUDA library, or of the release before it."""
    return row_for([row for row in read_table("libs")["cuda_libs"] if row["package"] == package], version, "version")


def pinned_libraries(torch: str, variant: str) -> dict[str, str]:
    """The versions of the CUDA libraries that a build of torch requires, as far as they are listed, by package."""
    release = parse_version(torch)[:2]
    return {
        str(row["package"]): str(row["version"])
        for row in read_table("torch")["pinned_libraries"]
        if (row["variants"] is None or variant in row["variants"])
        and parse_version(row["torch_min"]) <= release <= parse_version(row["torch_max"])
    }


def transformers_row(version: str) -> Row | None:
    """The row with the oldest torch and Python that a version of transformers supports."""
    return row_for(read_table("libs")["transformers"], version)


def first_match(section: str, error: str) -> Row:
    """The known error of torch's start or imports (`start`, `imports`) that a message contains."""
    rows: list[Row] = read_table("torch_errors")[section]
    return next(row for row in rows if re.search(row["pattern"], error, re.IGNORECASE))


def required(extra: str | None = None) -> list[Row]:
    """The requirements of this project in `pyproject.toml`, or those of one of its extras."""
    return [row for row in read_table("libs")["required"] if row["extra"] == extra]
