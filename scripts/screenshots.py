"""Draw what commands print on a terminal as SVG files, for README and docs.

Example: python scripts/screenshots.py docs/images/help.svg -- rlc --help
"""

from __future__ import annotations

import argparse
import io
import os
import pty
import re
import shlex
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100


def record(command: list[str]) -> str:
    """Everything that a command writes to a terminal of 100 columns, colours included."""
    written = bytearray()

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 65536)
        written.extend(data)
        return data

    os.environ.update(COLUMNS=str(WIDTH), LINES="60", TERM="xterm-256color")
    os.environ.pop("NO_COLOR", None)
    pty.spawn(command, read)
    return written.decode(errors="replace").replace("\r\n", "\n")


def last_frame(text: str) -> str:
    """The lines as they stand at the end: what a carriage return wrote over is gone."""
    return "\n".join(line.rsplit("\r", 1)[-1] for line in text.split("\n")).rstrip()


def draw(text: str, *, title: str, path: Path) -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(without_fetched_fonts(console.export_svg(title=title)), encoding="utf-8")


def without_fetched_fonts(svg: str) -> str:
    """A picture that asks no server for a font: the reader's own monospace is used."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("output", type=Path, help="the SVG file to write")
    parser.add_argument("--title", help="text of the title bar; the command when not given")
    parser.add_argument("command", nargs="+", help="after `--`: what to run")
    options = parser.parse_args()
    draw(
        last_frame(record(options.command)),
        title=options.title or shlex.join(options.command),
        path=options.output,
    )


if __name__ == "__main__":
    main()
