"""Every file stands on its own: no path of one machine, no unfinished part, no private wording."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from architecture.source_tree import REPOSITORY

FOLDERS = (".ci", "docs", "doctor", "examples", "profiles", "rl_compat", "scripts", "tests")
SUFFIXES = (".py", ".md", ".toml", ".sh", ".json", ".txt", "")
WORDS = (r"(?<![\w.])/wo(?:rk)\b", r"\.\./sha(?:red)", r"\bTO(?:DO)\b", r"\bFIX(?:ME)\b")
"written so that this file does not match itself"
PRIVATE_WORDS = (
    r"\bmend(s|ed|ing|able)?\b",
    r"\bkin\b",
    r"\bdear(er|est)?\b",
    r"\bbeside\b",
    r"\basked wrongly\b",
    r"\ba word on\b",
    r"\bprice of\b",
    r"\btaken as they are\b",
    r"\bof verl's(?! [a-z])",
    r"\bin vain\b",
    r"\bthat are there\b",
    r"(?<!there )\b(is|are) no (?!longer\b|more\b|faster\b|slower\b)\w+",
    r"\b(responses|sequences) at once\b",
    r"\bgroup read once\b",
    r"\bcomputes this model otherwise\b",
    r"\bmade to know\b",
    r"\blost in the middle of\b",
    r"\bgiven responses\b",
    r"\basked (for|of)\b",
    r"\bcomputes otherwise\b",
    r"\banew\b",
    r"\bwhat .{1,30} says of\b",
)
"wording that a native reader stumbles over"
PLAIN_AREAS = (
    "*.md",
    ".ci/**/*",
    "docs/**/*",
    "doctor/**/*",
    "examples/**/*",
    "profiles/**/*",
    "rl_compat/**/*",
    "scripts/**/*",
    "tests/**/*",
)
"files whose text uses the words of the field"


def text_files() -> list[Path]:
    inside = [path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*")]
    files = [
        path
        for path in (*inside, *REPOSITORY.glob("*"))
        if path.is_file() and path.suffix in SUFFIXES and path.name != ".git"
    ]
    return sorted(path for path in files if "__pycache__" not in path.parts and path.stat().st_size < 1_000_000)


def lines_with(pattern: re.Pattern[str], files: Iterable[Path]) -> dict[str, str]:
    """The matching lines by `file:line`."""
    return {
        f"{path.relative_to(REPOSITORY)}:{number}": line.strip()
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), start=1)
        if pattern.search(line)
    }


def test_no_file_names_a_machine_or_an_unfinished_part() -> None:
    assert lines_with(re.compile("|".join(WORDS)), text_files()) == {}


@pytest.mark.parametrize("area", PLAIN_AREAS)
def test_no_private_wording(area: str) -> None:
    inside = set(REPOSITORY.glob(area))
    files = [path for path in text_files() if path in inside and path.suffix != ".json"]

    assert files
    assert lines_with(re.compile("|".join(PRIVATE_WORDS), re.IGNORECASE), files) == {}


LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def test_relative_links_lead_to_files() -> None:
    pages = (*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"))
    links = [
        (page, link)
        for page in pages
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if not re.match(r"[a-z]+:", link)
    ]

    assert len(links) > 50
    assert [
        (str(page.relative_to(REPOSITORY)), link) for page, link in links if not (page.parent / link).exists()
    ] == []


def test_pages_name_built_in_runs_that_exist() -> None:
    runs = {path.stem for path in (REPOSITORY / "rl_compat" / "config" / "runs").glob("*.toml")}
    named = {
        (page.name, name)
        for page in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")))
        for name in re.findall(
            r"^ +rlc (?:train|plan) ([a-z][a-z0-9-]*)(?=\s|$)", page.read_text(encoding="utf-8"), re.M
        )
    }
    assert len(named) > 5
    assert {(page, name) for page, name in named if name not in runs} == set()
