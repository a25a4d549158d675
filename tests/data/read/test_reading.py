from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from fakes.models import character_tokenizer

from rl_compat.data.builtin import gsm8k
from rl_compat.data.form.columns import Columns, plain
from rl_compat.data.read.reading import Reading, load_rows, load_sources
from rl_compat.data.read.records import as_source
from rl_compat.errors import DataError

CHAT = [{"role": "user", "content": "2+2?"}]


def _parquet(path: Path, records: list[dict[str, Any]]) -> str:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    return str(path)


def test_built_in_names_follow_the_split() -> None:
    assert len(load_rows(["gsm8k"])) == 7473
    assert len(load_rows(["gsm8k"], split="test")) == 1319
    row = load_rows(["arithmetic"], split="test", max_samples=1)[0]
    assert (row.data_source, row.ground_truth) == ("rlc/arithmetic", str(sum(_numbers(row.prompt))))


def _numbers(prompt: Any) -> list[int]:
    return [int(text) for text in prompt[0]["content"].rstrip("=").split("+")]


def test_a_row_keeps_source_truth_extra_info_and_other_columns(tmp_path: Path) -> None:
    record = {
        "data_source": "mine",
        "prompt": CHAT,
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 9},
        "difficulty": 3,
    }
    row = load_rows([_parquet(tmp_path / "a.parquet", [record])])[0]
    assert (row.prompt, row.data_source, row.ground_truth, row.row) == (CHAT, "mine", "4", 0)
    assert row.extra_info == {"index": 9, "difficulty": 3}


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_json_and_json_lines_with_plain_text_prompts(tmp_path: Path, suffix: str) -> None:
    records = [{"text": "one", "answer": "1"}, {"text": "two", "ground_truth": 2}]
    path = tmp_path / f"data{suffix}"
    path.write_text(json.dumps(records) if suffix == ".json" else "\n".join(map(json.dumps, records)) + "\n\n")
    rows = load_rows([str(path)], columns=Columns(prompt="text"))
    assert [(row.prompt, row.ground_truth) for row in rows] == [("one", "1"), ("two", 2)]


def test_json_lines_under_the_name_json_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    assert [row.prompt for row in load_rows([str(tmp_path / "a.json")])] == ["a", "b"]


def test_several_files_are_one_dataset_cut_at_max_samples(tmp_path: Path) -> None:
    first = _parquet(tmp_path / "a.parquet", [{"prompt": "a"}, {"prompt": "b"}])
    second = _parquet(tmp_path / "b.parquet", [{"prompt": "c"}, {"prompt": "d"}])
    rows = load_rows([first, second], max_samples=3)
    assert [(row.prompt, row.row) for row in rows] == [("a", 0), ("b", 1), ("c", 2)]
    assert load_rows([first, str(tmp_path / "unread.parquet")], max_samples=2)[-1].prompt == "b"


def test_no_files_are_no_rows() -> None:
    assert load_rows([]) == []


def test_raw_gsm8k_is_converted_and_announced(tmp_path: Path) -> None:
    """A-DATA-03"""
    path = _parquet(tmp_path / "raw.parquet", gsm8k.raw_records("train", limit=3))
    said: list[str] = []
    assert load_rows([path], announce=said.append) == load_rows(["gsm8k"], max_samples=3)
    assert len(said) == 1 and f"`{path}`" in said[0]
    assert load_sources([path], Reading(task="prompts")).sources[0].forms[0].name == "gsm8k"


def test_questions_and_answers_that_are_not_gsm8k_are_taken_as_they_are_and_said(tmp_path: Path) -> None:
    """A-DATA-03"""
    path = _parquet(tmp_path / "qa.parquet", [{"question": "why", "answer": "because"}])
    said: list[str] = []
    row = load_rows([path], announce=said.append)[0]
    assert (row.prompt, row.ground_truth, row.data_source) == ("why", "because", "")
    assert len(said) == 1 and all(f"`{name}`" in said[0] for name in (path, "question", "answer"))


def test_a_missing_prompt_column_names_those_present_and_the_nearest(tmp_path: Path) -> None:
    path = _parquet(tmp_path / "a.parquet", [{"prompts": "x", "id": 1}])
    with pytest.raises(DataError, match=r"`prompt`.*`prompts`, `id`") as error:
        load_rows([path])
    assert "`data.prompt_key=prompts`" in str(error.value.hint)


def test_a_missing_file_names_those_beside_it(tmp_path: Path) -> None:
    _parquet(tmp_path / "train.parquet", [{"prompt": "x"}])
    with pytest.raises(DataError, match=r"missing\.parquet`") as error:
        load_rows([str(tmp_path / "missing.parquet")])
    assert "`train.parquet`" in str(error.value.hint)


def test_a_misspelt_name_gives_the_nearest() -> None:
    with pytest.raises(DataError, match="`gms8k`") as error:
        load_rows(["gms8k"])
    assert "`gsm8k`" in str(error.value.hint)


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("a.parquet", "not parquet", ""),
        ("a.arrow", "not arrow", ""),
        ("a.json", "{", "line 1 "),
        ("a.json", '{"prompt": "x"}', "object"),
        ("a.json", '["x"]', "row 0 "),
        ("a.jsonl", '{"prompt": "x"}\n{oops}\n', "line 2 "),
        ("a.jsonl", '{"prompt": "x"}\n\n{"prompt": "x"}\n{oops}\n', "line 4 "),
        ("a.jsonl", "3\n", "line 1 "),
        ("a.xlsx", "prompt", ""),
        ("a.csv", "prompt\nx\nx,y\n", "row 1 "),
        ("a.csv", "prompt\n", ""),
        ("a.csv", 'prompt\n"x\n', "line 2 "),
        ("a.jsonl.gz", "{}", ""),
        ("a.jsonl", "", ""),
        ("a.json", "[]", ""),
        ("a.txt", "\n\n", ""),
    ],
)
def test_damaged_and_empty_files_are_named_with_the_row(tmp_path: Path, name: str, text: str, where: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as error:
        load_rows([str(tmp_path / name)], columns=Columns(prompt="text") if name == "a.txt" else Columns())
    assert f"`{tmp_path / name}`" in error.value.message and where in error.value.message


def test_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"prompt": "\xff"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl`.*UTF-8"):
        load_rows([str(tmp_path / "a.jsonl")])


def test_an_empty_parquet_file_has_no_rows(tmp_path: Path) -> None:
    table = pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet`"):
        load_rows([str(tmp_path / "a.parquet")])


def test_unusable_prompts_are_counted_and_named_by_kind() -> None:
    prompts = ["ok", None, "  ", [], [{"role": "user", "content": ""}], 5, [{"text": "x"}]]
    with pytest.raises(DataError) as error:
        load_rows([as_source([{"prompt": prompt} for prompt in prompts])])
    assert "6 of 7 rows of `data`" in error.value.message
    assert all(f" in {rows}" in error.value.message for rows in ("row 1", "rows 2, 3, 4", "row 5", "row 6"))


def test_chat_rows_are_the_same_before_and_after_a_pandas_round_trip(tmp_path: Path) -> None:
    """A-DATA-06"""
    messages = [{"role": "system", "content": "be brief", "name": "s"}, *CHAT]
    record = {"prompt": messages, "extra_info": {"tools": [{"name": "f", "args": [1, 2]}], "flag": True}}
    pd.DataFrame([record]).to_parquet(tmp_path / "a.parquet")
    direct = load_rows([as_source([record])])[0]
    from_file = load_rows([str(tmp_path / "a.parquet")])[0]
    from_frame = load_rows([as_source(pd.read_parquet(tmp_path / "a.parquet").to_dict("records"))])[0]
    tokenizer = character_tokenizer()
    texts = {
        tokenizer.apply_chat_template(row.prompt, tokenize=False, add_generation_prompt=True)
        for row in (direct, from_file, from_frame)
    }
    assert texts == {"<|system|>be brief<|end|><|user|>2+2?<|end|><|assistant|>"}
    assert direct == from_file == from_frame
    assert _types(from_frame.prompt) | _types(from_frame.extra_info) == {dict, list, str, int, bool}


def _types(value: Any) -> set[type]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {type(value)}.union(*map(_types, items))


@pytest.mark.parametrize("rows", [[[0, 1, 2], [4, 5]], [[0, 1, 2], [4, 5, 6]]])
def test_rows_of_equal_length_stay_lists_like_any_others(rows: list[list[int]]) -> None:
    """A-DATA-07"""
    ragged = len({len(row) for row in rows}) > 1
    array = np.array(rows, dtype=object) if ragged else np.array(rows)
    assert plain(array) == rows
    records = [{"prompt": "x", "ids": row} for row in array]
    loaded = load_rows([as_source(records)])
    assert len(loaded) == 2
    assert [row.extra_info["ids"] for row in loaded] == rows
    assert all(type(row.extra_info["ids"]) is list and type(row.extra_info["ids"][0]) is int for row in loaded)


def test_data_is_checked_without_importing_torch() -> None:
    code = "import sys, rl_compat.data.encode.prompts, rl_compat.data.order.batches; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert done.stdout.strip() == "False"


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": str(Path(__file__).parents[3])}


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
