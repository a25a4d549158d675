from __future__ import annotations

from pathlib import Path

from rl_compat.rewards.builtin.table import BUILTINS
from rl_compat.rewards.checks import BUILTIN_BY_SOURCE, CODE_SOURCES

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")


def test_every_built_in_with_its_arguments_and_every_source_is_on_the_page() -> None:
    rows = {line.split("|")[1].strip(" `"): line for line in PAGE.splitlines() if line.startswith("| `")}
    missing = [
        name for name, builtin in BUILTINS.items() if any(f"`{key}`" not in rows[name] for key in builtin.arguments)
    ]
    assert missing == []
    assert [source for source in (*BUILTIN_BY_SOURCE, *CODE_SOURCES) if f"`{source}`" not in PAGE] == []
