"""Every algorithm has its page, and the pages speak of settings that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rl_compat.algorithms.table import ALGORITHMS, LOSS_READS
from rl_compat.config.settings import sections, settings

PAGES = Path(__file__).parents[2] / "docs" / "algorithms"
KEY = re.compile(rf"`((?:{'|'.join(sections())})\.[a-z_]+)[=`]")


def own_words(page: Path) -> str:
    """The page without the paragraphs on verl's keys."""
    paragraphs = page.read_text().split("\n\n")
    return "\n\n".join(part for part in paragraphs if not part.startswith(("In verl:", "- verl", "Corners")))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_has_its_page_with_source_and_verls_name(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text()

    assert text.startswith(f"# {name}: ")
    assert "verl" in text
    assert f"rlc train algorithm.name={name}" in text
    assert f"[{name}]({name}.md)" in (PAGES / "README.md").read_text()
    for key in ALGORITHMS[name].defaults:
        assert key in text, f"`{key}` is set by the name"


@pytest.mark.parametrize("page", sorted(path.name for path in PAGES.glob("*.md")))
def test_a_page_names_only_settings_that_there_are(page: str) -> None:
    named = set(KEY.findall(own_words(PAGES / page)))

    assert named <= set(settings())


@pytest.mark.parametrize("loss", LOSS_READS)
def test_a_policy_loss_has_its_row_with_what_it_reads(loss: str) -> None:
    rows = [line for line in (PAGES / "policy_losses.md").read_text().splitlines() if line.startswith(f"| `{loss}`")]

    assert len(rows) == 1
    read = rows[0].split("|")[3]
    assert set(re.findall(r"[\w.]+", read)) == set(LOSS_READS[loss])
