"""Draw the terminal output of commands as SVG files, for the README and the docs.

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
    """The output of a command on a terminal of 100 columns, with colours."""
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
    """The final lines, without text that a carriage return overwrote."""
    return "\n".join(line.rsplit("\r", 1)[-1] for line in text.split("\n")).rstrip()


def draw(text: str, *, title: str, path: Path) -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(without_fetched_fonts(console.export_svg(title=title)), encoding="utf-8")


def without_fetched_fonts(svg: str) -> str:
    """A picture that loads no font from a server but uses the reader's monospace font."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("output", type=Path, help="the SVG file to write")
    parser.add_argument("--title", help="text of the title bar (default: the command)")
    parser.add_argument("command", nargs="+", help="the command to run, after `--`")
    options = parser.parse_args()
    draw(
        last_frame(record(options.command)),
        title=options.title or shlex.join(options.command),
        path=options.output,
    )


if __name__ == "__main__":
    main()
