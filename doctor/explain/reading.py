"""A log as numbered lines without terminal codes, read in blocks so that it can have any size."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from rl_compat.errors import UsageError, nearest

BLOCK_BYTES = 256 * 1024
SEGMENT_CHARACTERS = 64 * 1024
"longer lines are cut; the parts keep the line number"

COMPRESSED = {b"\x1f\x8b": "zcat", b"PK\x03\x04": "unzip -p", b"\x28\xb5\x2f\xfd": "zstdcat", b"\xfd7zXZ": "xzcat"}
MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"first bytes of a file in that encoding; Windows shells write UTF-16"

_TERMINAL_CODES = re.compile(
    r"\x1b\[[0-?]{0,32}[ -/]{0,4}[@-~]"  # colours and cursor movements
    r"|\x1b\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)"  # titles and links
    r"|\x1b[@-Z\\-_]"
    r"|\[\d{1,3}(?:;\d{1,3}){0,4}m(?!\])"  # colours that lost their escape character when they were copied
    r"|[\x00-\x08\x0b-\x1f\x7f]"
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line, or one step of a progress bar, which has the number of the line that it redraws."""

    number: int
    text: str


def open_log(path: Path) -> BinaryIO:
    """The opened file. Raises UsageError if it cannot be read."""
    try:
        if path.is_dir():
            raise UsageError(f"`{path}` is a folder", hint=_files_in(path))
        return path.open("rb")
    except FileNotFoundError:
        raise UsageError(f"the file `{path}` does not exist", hint=_similar_file(path)) from None
    except OSError as error:
        raise UsageError(
            f"`{path}` cannot be read: {error.strerror}", hint="copy the log to a file that you can read"
        ) from None


def read_blocks(stream: BinaryIO, name: str) -> Iterator[list[Line]]:
    """The lines in blocks of about BLOCK_BYTES. Raises UsageError if the log is empty or not text."""
    first = stream.read(BLOCK_BYTES)
    if not first:
        raise UsageError(f"{name} is empty", hint="name a log file, or use a pipe: `command 2>&1 | rlc doctor explain`")
    data = chain([first], iter(lambda: stream.read(BLOCK_BYTES), b""))
    number, pending = 1, ""
    for text in codecs.iterdecode(data, _encoding(first, name), errors="replace"):
        *whole, pending = (pending + text).split("\n")
        block: list[Line] = []
        for line in whole:
            block += _steps(number, line.removesuffix("\r"))
            number += 1
        if len(pending) > SEGMENT_CHARACTERS:
            block += _steps(number, pending)
            pending = ""
        if block:
            yield block
    last = _steps(number, pending)
    if last:
        yield last


def clean(text: str) -> str:
    """The text as a terminal would show it, tabs as spaces."""
    return _TERMINAL_CODES.sub("", text).replace("\t", " ").rstrip()


def _steps(number: int, line: str) -> list[Line]:
    """A line, or every step of a progress bar, which a carriage return starts."""
    return [Line(number, cleaned) for part in line.split("\r") if (cleaned := clean(part))]


def _encoding(start: bytes, name: str) -> str:
    for mark, encoding in MARKS:
        if start.startswith(mark):
            return encoding
    for magic, command in COMPRESSED.items():
        if start.startswith(magic):
            raise UsageError(f"{name} is compressed", hint=f"use a pipe: `{command} FILE | rlc doctor explain -`")
    if b"\x00" in start[:8192]:
        raise UsageError(f"{name} is not text", hint="use the text that the program printed")
    return "utf-8"


def _files_in(folder: Path) -> str:
    newest = sorted((path for path in folder.glob("*") if path.is_file()), key=lambda path: -path.stat().st_mtime)
    return f"name a file in it; the newest is `{newest[0]}`" if newest else "name a file"


def _similar_file(path: Path) -> str:
    try:
        names = [other.name for other in path.parent.iterdir() if other.is_file()]
    except OSError:
        return f"the folder `{path.parent}` does not exist either"
    close = nearest(path.name, names)
    return f"did you mean `{path.parent / close}`" if close else "`-` reads standard input"
