from __future__ import annotations

from pathlib import Path

import pytest

from rl_compat.data.read.reading import load_rows
from rl_compat.errors import DataError


def _write(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(f'{{"prompt": "{name}"}}\n')


def _prompts(name: str | Path, **options: object) -> list[object]:
    return [row.prompt for row in load_rows([str(name)], **options)]  # type: ignore[arg-type]


def test_a_folder_stands_for_its_data_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    _write(tmp_path, "b.jsonl", "a.jsonl", "readme.md")
    said: list[str] = []
    assert _prompts(tmp_path, announce=said.append) == ["a.jsonl", "b.jsonl"]
    assert all(f"`{name}`" in said[0] for name in (tmp_path, "a.jsonl", "b.jsonl"))


def test_a_folder_that_names_splits_gives_the_one_asked_for(tmp_path: Path) -> None:
    _write(tmp_path / "data", "train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "validation-0.jsonl")
    assert _prompts(tmp_path) == ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"]
    assert _prompts(tmp_path, split="test") == ["validation-0.jsonl"]


def test_a_pattern_stands_for_the_files_it_matches(tmp_path: Path) -> None:
    _write(tmp_path / "x", "part-1.jsonl", "part-2.jsonl", "other.jsonl")
    assert _prompts(tmp_path / "x" / "part-*.jsonl") == ["part-1.jsonl", "part-2.jsonl"]
    assert len(_prompts(tmp_path / "**" / "*.jsonl")) == 3
    assert _prompts(tmp_path / "x" / "part-*.jsonl", max_samples=1) == ["part-1.jsonl"]


def test_a_file_whose_name_has_brackets_is_itself(tmp_path: Path) -> None:
    _write(tmp_path, "a[1].jsonl")
    assert _prompts(tmp_path / "a[1].jsonl") == ["a[1].jsonl"]


def test_nothing_found_is_said_with_what_is_there(tmp_path: Path) -> None:
    _write(tmp_path / "x", "train.jsonl")
    with pytest.raises(DataError, match=r"`.*/\*\.parquet`"):
        _prompts(tmp_path / "x" / "*.parquet")
    with pytest.raises(DataError, match="`test`") as error:
        _prompts(tmp_path / "x", split="test")
    assert "`train.jsonl`" in str(error.value.hint)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"/empty`"):
        _prompts(tmp_path / "empty")
