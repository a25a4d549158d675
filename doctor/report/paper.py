"""The output device of a text: its width, colours and characters."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

NARROWEST, USUAL, WIDEST = 60, 100, 120
BOLD, DIM, BAD, WARN, INFO, FINE = "1", "2", "1;31", "33", "36", "32"
ASCII = str.maketrans(
    {"…": "...", "–": "-", "—": "-", "≥": ">=", "≤": "<=", "×": "x", "·": "-", "→": "->", "°": " deg"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """Where text is written to."""

    width: int = USUAL
    coloured: bool = False
    encoding: str = "utf-8"

    def paint(self, text: str, colour: str) -> str:
        return f"\033[{colour}m{text}\033[0m" if self.coloured and text else text

    def wrap(self, text: str, *, first: str = "", rest: str | None = None) -> list[str]:
        """Lines no wider than the device; paths and commands stay whole."""
        return textwrap.wrap(
            text,
            self.width,
            initial_indent=first,
            subsequent_indent=first if rest is None else rest,
            break_long_words=False,
            break_on_hyphens=False,
        )

    def spell(self, line: str) -> str:
        """The line in characters that the encoding supports."""
        try:
            line.encode(self.encoding)
        except (UnicodeEncodeError, LookupError):
            return line.translate(ASCII).encode("ascii", "replace").decode("ascii")
        return line


def paper_of(stream: TextIO, environment: Mapping[str, str] = os.environ) -> Paper:
    """Width and colours of a terminal; plain text of the usual width for anything else."""
    terminal = stream.isatty()
    columns = shutil.get_terminal_size((USUAL, 24)).columns if terminal else USUAL
    colourless = bool(environment.get("NO_COLOR")) or environment.get("TERM", "") in ("", "dumb")
    return Paper(
        width=min(max(columns, NARROWEST), WIDEST),
        coloured=terminal and not colourless,
        encoding=stream.encoding or "ascii",
    )
