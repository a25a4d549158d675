"""Each form that data sets come in, read for each task that it serves."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest

from rl_compat.data.form.columns import Columns
from rl_compat.data.read.reading import Reading, load_rows, load_sources
from rl_compat.data.read.records import as_source
from rl_compat.errors import DataError

load_supervised = partial(load_rows, task="supervised")
load_preferences = partial(load_rows, task="preference")
load_labelled = partial(load_rows, task="labelled")
USER = {"role": "user", "content": "2+2?"}
ASSISTANT = {"role": "assistant", "content": "4"}
WRONG = {"role": "assistant", "content": "5"}
SYSTEM = {"role": "system", "content": "be brief"}
VERL = {
    "data_source": "mine",
    "prompt": [USER],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"split": "train", "index": 0, "answer": "2+2=4", "question": "2+2?"},
}
SHAREGPT = {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}
ALPACA = {"instruction": "add", "input": "2+2", "output": "4"}


def jsonl(folder: Path, *records: dict[str, Any]) -> str:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def prompt_of(folder: Path, record: dict[str, Any], **columns: str) -> tuple[Any, Any, tuple[str, Any]]:
    loaded = load_sources([jsonl(folder, record)], Reading(task="prompts", columns=Columns(**columns)))
    form = loaded.sources[0].forms[0]
    return loaded.rows[0].prompt, loaded.rows[0].ground_truth, (form.name, form.columns)


@pytest.mark.parametrize(
    ("record", "prompt", "truth", "form"),
    [
        (
            VERL,
            [USER],
            "4",
            ("verl", {"prompt": "prompt", "answer": "reward_model.ground_truth", "source": "data_source"}),
        ),
        ({"prompt": "2+2?"}, "2+2?", None, ("prompt", {"prompt": "prompt"})),
        ({"prompt": [USER], "answer": "4"}, [USER], "4", ("prompt", {"prompt": "prompt", "answer": "answer"})),
        ({"prompt": "2+2?", "completion": "4"}, "2+2?", None, ("prompt", {"prompt": "prompt"})),
        ({"messages": [USER, ASSISTANT]}, [USER], None, ("turns", {"prompt": "messages"})),
        ({"messages": [USER]}, [USER], None, ("turns", {"prompt": "messages"})),
        (SHAREGPT, [USER], None, ("turns", {"prompt": "conversations"})),
        (
            ALPACA,
            "add\n\n2+2",
            "4",
            ("alpaca", {"prompt": "instruction", "answer": "output", "input": "input"}),
        ),
        (
            {"instruction": "add", "output": "4"},
            "add",
            "4",
            ("alpaca", {"prompt": "instruction", "answer": "output"}),
        ),
        ({"question": "2+2?"}, "2+2?", None, ("question-answer", {"prompt": "question"})),
        (
            {"problem": "2+2?", "answer": 4, "system": "be brief"},
            [SYSTEM, USER],
            4,
            ("question-answer", {"prompt": "problem", "answer": "answer", "system": "system"}),
        ),
        (
            {"chosen": [USER, ASSISTANT], "rejected": [USER, WRONG]},
            [USER],
            None,
            ("pair-prompts", {"chosen": "chosen", "rejected": "rejected"}),
        ),
    ],
)
def test_prompts_come_out_of_every_form(
    record: dict[str, Any], prompt: Any, truth: Any, form: tuple[str, Any], tmp_path: Path
) -> None:
    assert prompt_of(tmp_path, record) == (prompt, truth, form)


def test_raw_math_is_converted_with_its_boxed_answer_or_the_given_one(tmp_path: Path) -> None:
    solution = r"So it is \boxed{\frac{1}{2}}."
    row = load_rows([jsonl(tmp_path, {"problem": "half?", "solution": solution, "level": "Level 1"})])[0]
    assert row.ground_truth == r"\frac{1}{2}"
    assert row.data_source == "DigitalLearningGmbH/MATH-lighteval"
    assert row.prompt[0]["content"].startswith("half? Let's think step by step")  # type: ignore[index]
    row = load_rows([jsonl(tmp_path, {"problem": "half?", "solution": solution, "answer": "0.5"})])[0]
    assert row.ground_truth == "0.5"


def test_columns_can_be_named_and_reach_into_structs(tmp_path: Path) -> None:
    record = {"text": "2+2?", "meta": {"gold": "4"}, "messages": [USER, ASSISTANT]}
    assert prompt_of(tmp_path, record, prompt="text", answer="meta.gold")[:2] == ("2+2?", "4")
    assert prompt_of(tmp_path, record, prompt="messages")[:2] == ([USER], None)
    with pytest.raises(DataError, match="`txt`") as error:
        prompt_of(tmp_path, record, prompt="txt")
    assert "`data.prompt_key=text`" in str(error.value.hint)
    with pytest.raises(DataError, match=r"`meta.silver`"):
        prompt_of(tmp_path, record, prompt="text", answer="meta.silver")


@pytest.mark.parametrize(
    ("record", "prompt", "response"),
    [
        ({"prompt": "2+2?", "completion": "4"}, "2+2?", "4"),
        ({"prompt": [USER], "completion": [ASSISTANT]}, [USER], [ASSISTANT]),
        ({"prompt": "2+2?", "completion": [USER, ASSISTANT]}, [USER], [ASSISTANT]),
        ({"prompt": [SYSTEM, USER], "response": "4"}, [SYSTEM, USER], "4"),
        ({"messages": [SYSTEM, USER, ASSISTANT, USER, WRONG, USER]}, [SYSTEM, USER], [ASSISTANT, USER, WRONG]),
        (SHAREGPT, [USER], [ASSISTANT]),
        (SHAREGPT | {"system": "be brief"}, [SYSTEM, USER], [ASSISTANT]),
        (ALPACA, "add\n\n2+2", "4"),
        (
            {"instruction": "and?", "input": "", "output": "6", "history": [["2+2?", "4"]]},
            [USER, ASSISTANT, {"role": "user", "content": "and?"}],
            "6",
        ),
        ({"instruction": "add", "context": "2+2", "response": "4"}, "add\n\n2+2", "4"),
        ({"question": "2+2?", "answer": "4"}, "2+2?", "4"),
        ({"system_prompt": "be brief", "question": "2+2?", "response": "4"}, [SYSTEM, USER], "4"),
        ({"text": "once upon a time"}, "", "once upon a time"),
        (VERL, [USER], "2+2=4"),
        (
            {"prompt": "2+2?", "chosen": [USER, ASSISTANT], "rejected": [USER, WRONG], "messages": [USER, ASSISTANT]},
            [USER],
            [ASSISTANT],
        ),
    ],
)
def test_responses_to_imitate_come_out_of_every_form(
    record: dict[str, Any], prompt: Any, response: Any, tmp_path: Path
) -> None:
    row = load_supervised([jsonl(tmp_path, record)])[0]
    assert (row.prompt, row.response) == (prompt, response)
    assert (row.prompt == "") == ("text" in record)


def test_shipped_data_has_responses_and_sums_have_preferences() -> None:
    gsm8k = load_supervised(["gsm8k"], max_samples=1)[0]
    assert str(gsm8k.response).endswith("#### 72")
    assert load_supervised(["arithmetic"], max_samples=1)[0].response.isdigit()  # type: ignore[union-attr]
    pairs = load_preferences(["arithmetic"], max_samples=50)
    assert [pair.chosen for pair in pairs] == [row.ground_truth for row in load_rows(["arithmetic"], max_samples=50)]
    assert all(pair.rejected != pair.chosen and pair.rejected.isdigit() for pair in pairs)  # type: ignore[union-attr]
    with pytest.raises(DataError, match="`gsm8k`"):
        load_preferences(["gsm8k"])


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"prompt": "2+2?", "chosen": "4", "rejected": "5"}, ("2+2?", "4", "5", None)),
        ({"question": "2+2?", "chosen": "4", "rejected": "5", "margin": 2}, ("2+2?", "4", "5", 2.0)),
        ({"prompt": [USER], "chosen": [ASSISTANT], "rejected": [WRONG]}, ([USER], [ASSISTANT], [WRONG], None)),
        ({"chosen": [USER, ASSISTANT], "rejected": [USER, WRONG]}, ([USER], [ASSISTANT], [WRONG], None)),
        (
            {"prompt": "2+2?", "chosen": [USER, ASSISTANT], "rejected": [USER, WRONG]},
            ([USER], [ASSISTANT], [WRONG], None),
        ),
        (
            {"system": "be brief", "chosen": [USER, ASSISTANT], "rejected": [USER, WRONG]},
            ([SYSTEM, USER], [ASSISTANT], [WRONG], None),
        ),
        (
            {"chosen": [USER, ASSISTANT, USER, ASSISTANT], "rejected": [USER, ASSISTANT, USER, WRONG]},
            ([USER, ASSISTANT, USER], [ASSISTANT], [WRONG], None),
        ),
        (
            {
                "conversations": [{"from": "human", "value": "2+2?"}],
                "chosen": {"from": "gpt", "value": "4"},
                "rejected": {"from": "gpt", "value": "5"},
            },
            ([USER], [ASSISTANT], [WRONG], None),
        ),
        (
            {"chosen": "Human: 2+2? Assistant: 4", "rejected": "Human: 2+2? Assistant: 5"},
            ("", "Human: 2+2? Assistant: 4", "Human: 2+2? Assistant: 5", None),
        ),
    ],
)
def test_preference_pairs_come_with_or_without_a_prompt(
    record: dict[str, Any], expected: tuple[Any, ...], tmp_path: Path
) -> None:
    row = load_preferences([jsonl(tmp_path, record)])[0]
    assert (row.prompt, row.chosen, row.rejected, row.margin) == expected


def test_labelled_responses_and_pairs_as_two_of_them(tmp_path: Path) -> None:
    records = [
        {"prompt": "2+2?", "completion": "4", "label": True},
        {"prompt": "2+2?", "completion": "5", "label": 0},
        {"prompt": "2+2?", "completion": "6", "label": "False"},
    ]
    rows = load_labelled([jsonl(tmp_path, *records)])
    assert [(row.prompt, row.response, row.label) for row in rows] == [
        ("2+2?", "4", True),
        ("2+2?", "5", False),
        ("2+2?", "6", False),
    ]
    turns = load_labelled([jsonl(tmp_path, {"messages": [USER, ASSISTANT], "label": True})])[0]
    assert (turns.prompt, turns.response, turns.label) == ([USER], [ASSISTANT], True)
    pair = load_labelled([jsonl(tmp_path, {"prompt": "2+2?", "chosen": "4", "rejected": "5"})])
    assert [(row.response, row.label, row.row) for row in pair] == [("4", True, 0), ("5", False, 0)]


def test_named_columns_serve_pairs_and_labels(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"q": "2+2?", "good": "4", "bad": "5", "reply": "4", "ok": "yes"})
    pair = load_preferences([path], columns=Columns(prompt="q", chosen="good", rejected="bad"))[0]
    assert (pair.prompt, pair.chosen, pair.rejected) == ("2+2?", "4", "5")
    labelled = load_labelled([path], columns=Columns(prompt="q", response="reply", label="ok"))[0]
    assert (labelled.prompt, labelled.response, labelled.label) == ("2+2?", "4", True)
    assert load_supervised([path], columns=Columns(prompt="q", response="bad"))[0].response == "5"
    inside = Columns(prompt="extra_info.question", response="extra_info.answer")
    row = load_supervised([jsonl(tmp_path, VERL)], columns=inside)[0]
    assert (row.prompt, row.response) == ("2+2?", "2+2=4")


@pytest.mark.parametrize(
    ("load", "record", "columns"),
    [
        (
            load_rows,
            {"messages": [USER], "question": "2+2?"},
            ("`question`", "`messages`"),
        ),
        (load_supervised, ALPACA | {"messages": [USER, ASSISTANT]}, ("`instruction`", "`messages`")),
        (load_supervised, {"prompt": "2+2?"}, ("`prompt`",)),
        (
            load_preferences,
            {"prompt": "2+2?", "chosen": "4"},
            ("`prompt`, `chosen`",),
        ),
        (load_labelled, {"prompt": "2+2?", "completion": "4"}, ("`prompt`, `completion`",)),
        (load_rows, {"id": 1}, ("`prompt`", "`id`")),
    ],
)
def test_columns_of_no_form_or_of_two_are_refused(
    load: Any, record: dict[str, Any], columns: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(DataError) as error:
        load([jsonl(tmp_path, record)])
    assert all(column in error.value.message for column in columns)
    assert "data." in str(error.value.hint)


def test_an_ambiguous_file_is_read_once_a_column_is_named(tmp_path: Path) -> None:
    path = jsonl(tmp_path, ALPACA | {"messages": [USER, ASSISTANT]})
    assert load_supervised([path], columns=Columns(prompt="messages"))[0].prompt == [USER]
    assert load_supervised([path], columns=Columns(response="output"))[0].prompt == "add\n\n2+2"


@pytest.mark.parametrize(
    ("load", "record"),
    [
        (load_supervised, {"prompt": "2+2?", "completion": None}),
        (load_supervised, {"prompt": "2+2?", "completion": " "}),
        (
            load_preferences,
            {"prompt": "2+2?", "chosen": "4", "rejected": None},
        ),
        (
            load_preferences,
            {"prompt": "2+2?", "chosen": "4", "rejected": [WRONG]},
        ),
        (load_labelled, {"prompt": "2+2?", "completion": "4", "label": "maybe"}),
        (load_rows, {"conversations": [{"from": "alien", "value": "x"}]}),
        (
            load_supervised,
            {"conversations": SHAREGPT["conversations"][1:]},
        ),
        (load_supervised, {"messages": [USER]}),
        (
            load_preferences,
            {"chosen": [USER, ASSISTANT], "rejected": [SYSTEM, WRONG]},
        ),
        (load_rows, {"question": "?", "answer": "no number ####"}),
    ],
)
def test_rows_that_cannot_be_used_are_named_or_left_out(load: Any, record: dict[str, Any], tmp_path: Path) -> None:
    good: dict[str, Any] = {
        "completion": {"prompt": "a", "completion": "b", "label": True},
        "chosen": {"prompt": "a", "chosen": "b", "rejected": "c"}
        if "prompt" in record
        else {"chosen": [USER, ASSISTANT], "rejected": [USER, WRONG]},
        "conversations": SHAREGPT,
        "messages": {"messages": [USER, ASSISTANT]},
        "question": {"question": "?", "answer": "#### 4"},
    }[next(key for key in ("completion", "chosen", "conversations", "messages", "question") if key in record)]
    path = jsonl(tmp_path, good, record)
    with pytest.raises(DataError) as error:
        load([path])
    assert "1 of 2 rows" in error.value.message and "in row 1" in error.value.message
    assert "`data.bad_rows=drop`" in str(error.value.hint)
    said: list[str] = []
    assert [row.row for row in load([path], bad_rows="drop", announce=said.append)] == [0]
    assert "1 of 2 rows" in said[-1] and "row 1" in said[-1]


def test_structs_lists_json_text_nulls_and_an_index_survive_a_table(tmp_path: Path) -> None:
    """A-DATA-06"""
    tools = [{"name": "f", "args": [1, 2]}]
    records = [
        {
            "prompt": [SYSTEM | {"name": "s"}, USER],
            "reward_model": {"ground_truth": ["4", "four"]},
            "extra_info": {"tools": tools},
        },
        {"prompt": [USER], "reward_model": {"ground_truth": ["5"]}, "extra_info": {"tools": None}},
    ]
    frame = pd.DataFrame(records, index=["a", "b"])
    frame.to_parquet(tmp_path / "a.parquet")
    first, second = load_rows([str(tmp_path / "a.parquet")])
    assert first.prompt == records[0]["prompt"] and second.prompt == [USER]
    assert first.ground_truth == ["4", "four"] and first.extra_info == {"tools": tools}
    assert "__index_level_0__" not in second.extra_info
    text = [{key: json.dumps(value) for key, value in record.items()} for record in records]
    assert load_rows([jsonl(tmp_path, *text)]) == load_rows([jsonl(tmp_path, *records)])


def test_large_strings_dictionaries_and_views_are_plain_text(tmp_path: Path) -> None:
    table = pyarrow.table(
        {
            "prompt": pyarrow.array(["a", "b"], pyarrow.large_string()),
            "data_source": pyarrow.array(["x", "x"]).dictionary_encode(),
            "ids": pyarrow.array([[1, 2], [3]], pyarrow.large_list(pyarrow.int32())),
            "nothing": pyarrow.nulls(2),
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    rows = load_rows([str(tmp_path / "a.parquet")])
    assert [(row.prompt, row.data_source) for row in rows] == [("a", "x"), ("b", "x")]
    assert rows[1].extra_info == {"ids": [3], "nothing": None}


def test_numpy_scalars_and_arrays_of_messages_are_plain(tmp_path: Path) -> None:
    """A-DATA-07"""
    record = {"prompt": np.array([USER], dtype=object), "extra_info": {"index": np.int64(3), "flag": np.bool_(True)}}
    row = load_rows([as_source([record])])[0]
    assert row.prompt == [USER]
    assert row.extra_info == {"index": 3, "flag": True}
    assert type(row.extra_info["index"]) is int


def test_csv_and_compressed_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('\ufeffquestion,answer\n"one, two?",3\nempty?,\n', encoding="utf-8")
    rows = load_rows([str(tmp_path / "a.csv")])
    assert [(row.prompt, row.ground_truth) for row in rows] == [("one, two?", "3"), ("empty?", None)]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write('{"prompt": "x"}\n')
    assert load_rows([str(tmp_path / "a.jsonl.gz")])[0].prompt == "x"


def test_rows_of_another_form_are_told_by_the_columns_that_they_have(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"prompt": "a"}, ALPACA, {"messages": [USER]}, {"prompt": None}, {})
    with pytest.raises(DataError) as error:
        load_rows([path])
    reasons = error.value.message.rpartition("`: ")[2].split("; ")
    assert [reason.rpartition(" in ")[2] for reason in reasons] == ["row 1", "row 2", "row 3", "row 4"]
    assert "`instruction`, `input`, `output`" in reasons[0] and "`messages`" in reasons[1]


def test_text_that_looks_like_a_list_stays_text(tmp_path: Path) -> None:
    assert prompt_of(tmp_path, {"prompt": "[1, 2, 3]"})[0] == "[1, 2, 3]"
    assert prompt_of(tmp_path, {"prompt": '{"a": 1}'})[0] == '{"a": 1}'
