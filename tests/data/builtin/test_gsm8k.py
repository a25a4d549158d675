from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from rl_compat.data.builtin import gsm8k
from rl_compat.errors import DataError
from rl_compat.rewards.builtin.gsm8k import gsm8k as reward
from rl_compat.rewards.builtin.gsm8k import gsm8k_format, gsm8k_strict


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("cost 130,000 each\n#### 70000", "70000"),
        ("#### 1,080", "1080"),
        ("#### 5,600.", "5600"),
        ("#### 109,200,000", "109200000"),
        ("#### $12", "12"),
        ("#### 2.50", "2.50"),
    ],
)
def test_separators_and_a_full_stop_are_not_part_of_the_ground_truth(answer: str, truth: str) -> None:
    """A-DATA-01"""
    assert gsm8k.ground_truth(answer) == truth


@pytest.mark.parametrize("minus", ["-", "\u2212", "\u2013", "-$", "$-"])
def test_a_negative_ground_truth_keeps_its_sign(minus: str) -> None:
    """A-DATA-02"""
    assert gsm8k.ground_truth(f"It was 2 and fell by 5.\n#### {minus}3") == "-3"


def test_an_answer_without_the_marker_or_a_number_has_no_ground_truth() -> None:
    assert gsm8k.ground_truth("It is 3.") is None
    assert gsm8k.ground_truth("#### none") is None


def test_the_instruction_follows_the_question_after_one_space() -> None:
    row = gsm8k.row("How many?", "It is 2.\n#### 2", split="train", index=5)
    content = 'How many? Let\'s think step by step and output the final answer after "####".'
    assert row == {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": content}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"split": "train", "index": 5, "answer": "It is 2.\n#### 2", "question": "How many?"},
    }


def test_a_raw_row_without_a_final_number_is_named() -> None:
    with pytest.raises(DataError, match="row 7:"):
        gsm8k.row("How many?", "many", split="train", index=7)


def test_the_shipped_splits_are_whole_and_the_rewards_agree_with_every_reference_solution() -> None:
    rows = gsm8k.rows("train") + gsm8k.rows("test")
    assert len(gsm8k.raw_records("train")) == 7473
    assert len(gsm8k.raw_records("test")) == 1319
    for row in rows:
        answer, truth = row["extra_info"]["answer"], row["reward_model"]["ground_truth"]
        assert truth == answer.split("#### ")[1].replace(",", "")
        outcomes = (reward(answer, truth), gsm8k_strict(answer, truth), gsm8k_format(answer, truth))
        assert [outcome.reward for outcome in outcomes] == [1.0, 1.0, 1.0], answer


def test_written_files_have_the_schema_that_verl_reads(tmp_path: Path) -> None:
    written = gsm8k.write(tmp_path / "new" / "folder")
    path, num_rows = written["test"]
    table = pyarrow.parquet.read_table(path)
    types = {field.name: str(field.type).replace("element:", "item:") for field in table.schema}
    assert types == {
        "data_source": "string",
        "prompt": "list<item: struct<role: string, content: string>>",
        "ability": "string",
        "reward_model": "struct<style: string, ground_truth: string>",
        "extra_info": "struct<split: string, index: int64, answer: string, question: string>",
    }
    assert num_rows == table.num_rows == 1319
    assert table.to_pylist() == gsm8k.rows("test")
    assert sorted(item.name for item in path.parent.iterdir()) == ["test.parquet", "train.parquet"]


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"`.*file/inside`"):
        gsm8k.write(tmp_path / "file" / "inside")


def test_the_licence_lies_beside_the_data() -> None:
    folder = Path(gsm8k.__file__).parent / "gsm8k_files"
    assert "MIT License" in (folder / "LICENSE").read_text()
    assert json.dumps(gsm8k.raw_records("train", limit=1)[0]).startswith('{"question": "Natalia sold clips')
