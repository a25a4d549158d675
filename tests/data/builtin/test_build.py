"""Files in verl's schema from other data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from rl_compat.data.builtin.build import build_file, build_math
from rl_compat.data.builtin.verl_schema import SCHEMA
from rl_compat.data.read.reading import load_rows
from rl_compat.errors import DataError

PROBLEM = {"problem": "half of 1?", "level": "Level 1", "solution": r"It is $\boxed{\frac{1}{2}}$."}


def jsonl(path: Path, *records: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_two_columns_become_the_schema_that_training_reads(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "qa.jsonl", {"q": "2+2?", "meta": {"a": 4}}, {"q": "1+1?", "meta": {"a": 2}})
    output = tmp_path / "out" / "qa.parquet"
    written = build_file(source, output, question="q", answer="meta.a", instruction="Be brief.")
    assert (written.num_rows, written.num_left_out) == (2, 0)
    assert pyarrow.parquet.read_schema(output).equals(SCHEMA)
    row = load_rows([str(output)])[0]
    assert row.prompt == [{"role": "user", "content": "2+2? Be brief."}]
    assert (row.ground_truth, row.data_source) == ("4", "qa")
    assert row.extra_info == {"split": "train", "index": 0, "answer": "4", "question": "2+2?", "ability": "math"}


@pytest.mark.parametrize(
    ("answer", "answer_in", "truth"),
    [
        ("so\n#### 1,080", "hash", "1080"),
        ("It was 2 and fell by 5.\n#### -3", "hash", "-3"),
        ("#### −3", "hash", "-3"),
        (r"a \boxed{1} b \boxed{\frac{1}{2}}", "boxed", r"\frac{1}{2}"),
        (" Paris ", "column", "Paris"),
    ],
)
def test_the_ground_truth_is_read_from_the_answer(answer: str, answer_in: Any, truth: str, tmp_path: Path) -> None:
    """A-DATA-01, A-DATA-02"""
    source = jsonl(tmp_path / "qa.jsonl", {"q": "?", "a": answer})
    build_file(source, tmp_path / "qa.parquet", question="q", answer="a", answer_in=answer_in, data_source="mine")
    row = load_rows([str(tmp_path / "qa.parquet")])[0]
    assert (row.ground_truth, row.data_source, row.extra_info["answer"]) == (truth, "mine", answer.strip())


def test_rows_without_a_question_or_an_answer_are_named_or_dropped(tmp_path: Path) -> None:
    records = [{"q": "?", "a": "1"}, {"q": None, "a": "1"}, {"q": "?", "a": None}]
    source, output = jsonl(tmp_path / "qa.jsonl", *records), tmp_path / "qa.parquet"
    with pytest.raises(DataError, match=r"in row 1; .* in row 2") as error:
        build_file(source, output, question="q", answer="a")
    assert "`--drop`" in str(error.value.hint) and not output.exists()
    written = build_file(source, output, question="q", answer="a", drop=True)
    assert (written.num_rows, written.num_left_out) == (1, 2)


def test_columns_and_names_that_are_wrong_are_told(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "qa.jsonl", {"question": "?", "a": "1"})
    with pytest.raises(DataError, match=r"`questoin`.*`question`, `a`") as error:
        build_file(source, tmp_path / "qa.parquet", question="questoin", answer="a")
    assert "`question`" in str(error.value.hint)
    with pytest.raises(DataError, match=r"`.*qa\.json`"):
        build_file(source, tmp_path / "qa.json", question="question", answer="a")
    with pytest.raises(DataError, match=r"qa\.jsonl`"):
        build_file(source, tmp_path / "b.parquet", question="question", answer="a", answer_in="boxed", drop=True)


def test_math_is_written_by_split_and_unanswered_problems_are_left_out(tmp_path: Path) -> None:
    jsonl(tmp_path / "m" / "data" / "train-0.jsonl", PROBLEM, PROBLEM | {"solution": "no box"})
    jsonl(tmp_path / "m" / "data" / "test-0.jsonl", PROBLEM | {"answer": "0.5"})
    train, test = build_math(str(tmp_path / "m"), tmp_path / "out")
    assert (train.path.name, train.num_rows, train.num_left_out) == ("train.parquet", 1, 1)
    rows = load_rows([str(train.path), str(test.path)])
    assert [row.ground_truth for row in rows] == [r"\frac{1}{2}", "0.5"]
    assert [row.extra_info["split"] for row in rows] == ["train", "test"]
    assert {row.data_source for row in rows} == {"DigitalLearningGmbH/MATH-lighteval"}


def test_one_file_of_math_has_the_split_of_its_name(tmp_path: Path) -> None:
    written = build_math(str(jsonl(tmp_path / "test.jsonl", PROBLEM)), tmp_path)
    assert [item.path.name for item in written] == ["test.parquet"]
    written = build_math(str(jsonl(tmp_path / "problems.jsonl", PROBLEM)), tmp_path)
    assert [item.path.name for item in written] == ["train.parquet"]


def test_math_that_is_nowhere_is_told_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="`DigitalLearningGmbH/MATH-lighteval`") as error:
        build_math("DigitalLearningGmbH/MATH-lighteval", tmp_path)
    assert error.value.exit_code == 2 and "`HF_ENDPOINT`" in str(error.value.hint)
    with pytest.raises(DataError, match=r"`\./nowhere`"):
        build_math("./nowhere", tmp_path)
    with pytest.raises(DataError, match="`problem`"):
        build_math(str(jsonl(tmp_path / "a.jsonl", {"question": "?"})), tmp_path)
    jsonl(tmp_path / "x" / "problems.jsonl", PROBLEM)
    with pytest.raises(DataError, match="`train`, `test`"):
        build_math(str(tmp_path / "x"), tmp_path)
