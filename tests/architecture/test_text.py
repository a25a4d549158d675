"""Every file stands on its own: no path of one machine, no unfinished part."""

from __future__ import annotations

import re
from pathlib import Path

from architecture.source_tree import REPOSITORY

FOLDERS = (".ci", "docs", "doctor", "examples", "profiles", "rl_compat", "scripts", "tests")
SUFFIXES = (".py", ".md", ".toml", ".sh", ".json", ".txt", "")
WORDS = (r"(?<![\w.])/wo(?:rk)\b", r"\.\./sha(?:red)", r"\bTO(?:DO)\b", r"\bFIX(?:ME)\b")
"written so that this file does not match itself"


def text_files() -> list[Path]:
    inside = [path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*")]
    files = [
        path
        for path in (*inside, *REPOSITORY.glob("*"))
        if path.is_file() and path.suffix in SUFFIXES and path.name != ".git"
    ]
    return sorted(path for path in files if "__pycache__" not in path.parts and path.stat().st_size < 1_000_000)


def test_no_file_names_a_machine_or_an_unfinished_part() -> None:
    forbidden = re.compile("|".join(WORDS))
    found = {
        f"{path.relative_to(REPOSITORY)}:{number}": line.strip()
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), start=1)
        if forbidden.search(line)
    }

    assert found == {}
