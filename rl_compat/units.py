"""Parse and format sizes in bytes, and format counts."""

from __future__ import annotations

import re

from rl_compat.errors import ConfigError

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_FACTORS = {
    "": 1,
    "b": 1,
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "t": 1024 * GIB,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024 * GIB,
}


def parse_bytes(text: str | int) -> int:
    """The bytes of a size such as `24GiB`, `512 MB`, `3g` or a plain number. A bare letter is a power of 1024.

    Raises ConfigError.
    """
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    factor = _FACTORS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise ConfigError(f"`{text}` is not a size in bytes", hint="for example `24GiB`, `512MB` or `1073741824`")
    return int(float(match.group(1)) * factor)


def parse_memory(text: str) -> int:
    """The bytes of a memory, which are not 0. Raises ConfigError."""
    size = parse_bytes(text)
    if not size:
        raise ConfigError(f"a memory of `{text}` holds nothing", hint="for example `64GiB`")
    return size


def format_bytes(num_bytes: float) -> str:
    """A number of bytes in the largest binary unit that gives at least 1, with one decimal."""
    sign = "-" if num_bytes < 0 else ""
    size = abs(float(num_bytes))
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{sign}{size:.0f} {unit}" if unit == "B" else f"{sign}{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 row`, `2 rows`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
