"""Turns, tools and calls in the forms that files have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rl_compat.data.form.columns import Task
from rl_compat.data.read.reading import load_rows
from rl_compat.data.read.records import as_source
from rl_compat.errors import DataError

SCHEMA = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "int"}}}}
TOOL = {"type": "function", "function": SCHEMA}
ARGUMENTS = {"a": 3, "b": [4]}
CALL = {"type": "function", "function": {"name": "add", "arguments": ARGUMENTS}}
ASKED = {"role": "user", "content": "3+4?"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "7"}
SAID = {"role": "assistant", "content": "7."}


def rows(*records: dict[str, Any], task: Task = "prompts") -> list[Any]:
    return load_rows([as_source(list(records))], task=task)


def reason(*records: dict[str, Any], task: Task = "prompts") -> str:
    with pytest.raises(DataError) as error:
        rows(*records, task=task)
    assert error.value.exit_code == 2
    return error.value.message


@pytest.mark.parametrize(
    "column",
    [
        {"tools": [TOOL]},
        {"tools": [SCHEMA]},
        {"tools": TOOL},
        {"functions": [SCHEMA]},
        {"tools": json.dumps([TOOL])},
        {"functions": json.dumps([SCHEMA])},
        {"tools": [json.dumps(TOOL)]},
        {"tools": [{"type": "function", "function": {**SCHEMA, "parameters": json.dumps(SCHEMA["parameters"])}}]},
        {"tools": [{**TOOL, "strict": None}]},
    ],
)
@pytest.mark.parametrize(
    ("task", "columns"),
    [
        ("prompts", {"prompt": "3+4?"}),
        ("supervised", {"messages": [ASKED, SAID]}),
        ("supervised", {"prompt": "3+4?", "completion": "7"}),
        ("preference", {"prompt": "3+4?", "chosen": "7", "rejected": "8"}),
        ("labelled", {"prompt": "3+4?", "completion": "7", "label": True}),
    ],
)
def test_tools_come_from_every_form_of_their_column(
    task: Task, columns: dict[str, Any], column: dict[str, Any]
) -> None:
    assert rows(columns | column, columns, task=task)[0].tools == (TOOL,)
    assert rows(columns | column, columns | {next(iter(column)): None}, task=task)[-1].tools == ()


def test_tools_and_calls_of_parquet_structs_have_no_fields_of_other_rows(tmp_path: Path) -> None:
    other = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "str"}}}},
    }
    records = [
        {"messages": [ASKED, CALLED, RESULT, SAID], "tools": [TOOL]},
        {"messages": [{"role": "user", "content": "x", "name": "me"}, SAID], "tools": [other]},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "a.parquet")
    found = load_rows([str(tmp_path / "a.parquet")], task="supervised")
    assert found[0].tools == (TOOL,)
    assert found[0].response == [CALLED, RESULT, SAID]
    assert found[1].prompt == [{"role": "user", "content": "x", "name": "me"}]


@pytest.mark.parametrize("tools", [["add"], [{"type": "function"}], "[1]", [{"function": {"name": None}}]])
def test_tools_without_names_are_refused(tools: Any) -> None:
    assert "1 of 2 rows" in (said := reason({"prompt": "a", "tools": tools}, {"prompt": "b"})) and "row 0" in said


@pytest.mark.parametrize(
    "turn",
    [
        CALLED,
        {"role": "assistant", "content": None, "tool_calls": json.dumps([CALL])},
        {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": json.dumps(ARGUMENTS)}}]},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "add", "arguments": ARGUMENTS}]},
        {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": json.dumps(ARGUMENTS)}},
        {"from": "function_call", "value": json.dumps({"name": "add", "arguments": ARGUMENTS})},
    ],
)
def test_calls_have_one_form_with_their_arguments_as_an_object(turn: dict[str, Any]) -> None:
    result = {"from": "observation", "value": "7"} if "from" in turn else {"role": "function", "content": "7"}
    row = rows({"messages": [ASKED, turn, result, SAID]}, task="supervised")[0]
    assert row.response == [CALLED, RESULT, SAID]


def test_the_id_of_a_call_and_the_fields_of_a_turn_are_kept() -> None:
    call, result = {"id": "c1", **CALL}, {"role": "tool", "content": "7", "tool_call_id": "c1", "name": "add"}
    row = rows({"messages": [ASKED, {**CALLED, "tool_calls": [call]}, result, SAID]}, task="supervised")[0]
    assert row.response[0]["tool_calls"] == [call] and row.response[1] == result


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "3+4?"}], "3+4?"),
        ([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}], "a\nb"),
        ([{"text": "a"}, "b"], "a\nb"),
        ({"type": "text", "text": "a"}, "a"),
        ([{"type": "text", "text": "a", "image_url": None}], "a"),
    ],
)
def test_content_in_parts_is_plain_text(content: Any, text: str) -> None:
    assert rows({"prompt": [{"role": "user", "content": content}]})[0].prompt == [{"role": "user", "content": text}]


def test_the_object_that_a_tool_returns_is_json_text() -> None:
    turn = {"role": "tool", "content": {"sum": 7}}
    row = rows({"messages": [ASKED, CALLED, turn, SAID]}, task="supervised")[0]
    assert row.response[1]["content"] == '{"sum": 7}'


@pytest.mark.parametrize(
    "part", [{"type": "image"}, {"type": "image_url", "image_url": {"url": "x"}}, {"type": "audio", "text": None}]
)
def test_a_part_that_is_not_text_is_named_with_its_row_and_turn(part: dict[str, Any]) -> None:
    turns = [ASKED, SAID, {"role": "user", "content": [{"type": "text", "text": "a"}, part]}]
    said = reason({"prompt": "fine"}, {"prompt": turns})
    assert all(fact in said for fact in ("row 1", "turn 2", "part 1", f"`{part['type']}`"))


@pytest.mark.parametrize("speaker", [{"role": "teacher", "content": "x"}, {"from": "alien", "value": "x"}])
def test_an_unknown_role_is_named(speaker: dict[str, str]) -> None:
    name = speaker.get("role") or speaker["from"]
    assert f"`{name}`" in reason({"prompt": [ASKED, speaker]})


@pytest.mark.parametrize(("given", "role"), [("User", "user"), ("HUMAN", "user"), ("developer", "developer")])
def test_a_role_is_known_however_it_is_written(given: str, role: str) -> None:
    assert rows({"prompt": [{"role": given, "content": "x"}, ASKED]})[0].prompt[0]["role"] == role


SYSTEM = {"role": "system", "content": "be brief"}
BLANK = {"role": "user", "content": " \n"}


@pytest.mark.parametrize(
    "prompt",
    [" \n", "\u200b\ufeff", "\u00a0", [BLANK], [SYSTEM], [SYSTEM, BLANK], [SYSTEM, {"role": "user", "content": None}]],
)
@pytest.mark.parametrize(
    ("task", "columns"),
    [("prompts", {}), ("supervised", {"completion": "x"}), ("preference", {"chosen": "x", "rejected": "y"})],
)
def test_a_chat_of_white_space_or_of_a_system_message_alone_cannot_be_used(
    prompt: Any, task: Task, columns: dict[str, Any]
) -> None:
    assert "row 0" in reason({"prompt": prompt, **columns}, {"prompt": "fine", **columns}, task=task)


@pytest.mark.parametrize(
    ("task", "record"),
    [
        ("supervised", {"prompt": "a", "completion": " "}),
        ("supervised", {"messages": [ASKED, {"role": "assistant", "content": " "}]}),
        ("preference", {"prompt": "a", "chosen": "\n", "rejected": "b"}),
        ("preference", {"prompt": "a", "chosen": "b", "rejected": [{"role": "assistant", "content": " "}]}),
        ("labelled", {"prompt": "a", "completion": " ", "label": True}),
    ],
)
def test_a_response_of_white_space_alone_cannot_be_used(task: Task, record: dict[str, Any]) -> None:
    assert "row 0" in reason(record, task=task)


@pytest.mark.parametrize("column", ["images", "image", "videos", "audios", "image_path", "multi_modal_data"])
@pytest.mark.parametrize(
    ("task", "columns"),
    [("prompts", {}), ("supervised", {"completion": "x"}), ("labelled", {"completion": "x", "label": True})],
)
def test_a_column_that_a_text_model_cannot_see_is_refused_by_rows(
    column: str, task: Task, columns: dict[str, Any]
) -> None:
    records = [{"prompt": "<image> what?", column: value, **columns} for value in (None, [], ["x.png"], "x.png")]
    said = reason(*records, task=task)
    assert f"`{column}`" in said and "rows 2, 3" in said and "2 of 4" in said


def test_columns_that_are_not_used_are_named() -> None:
    said: list[str] = []
    record = {"prompt": "a", "completion": "b", "difficulty": 3, "metadata": {"x": 1}}
    load_rows([as_source([record])], task="supervised", announce=said.append)
    assert said[0].endswith("`difficulty`, `metadata`")


SOLVED = {"question": "3+4?", "answer": "3+4=7\n#### 7"}


def test_a_raw_row_without_its_final_answer_is_refused_where_others_have_one() -> None:
    said = reason(SOLVED, {"question": "1+1?", "answer": "It is 2, since 1+1=2."}, {"question": "2?", "answer": "####"})
    assert "rows 1, 2" in said and "2 of 3" in said
    said = reason({"problem": "p", "solution": r"so \boxed{7}"}, {"problem": "q", "solution": "so 7"})
    assert "row 1" in said
    assert rows({"question": "?", "answer": "first #### 3\nno, #### 7"})[0].ground_truth == "7"


def test_a_response_is_learned_without_a_final_answer() -> None:
    found = rows(SOLVED, {"question": "1+1?", "answer": "It is 2."}, task="supervised")
    assert [row.response for row in found] == [SOLVED["answer"], "It is 2."]


@pytest.mark.parametrize(
    ("given", "truth"),
    [
        ('["5"]', ["5"]),
        ('["5", "five"]', ["5", "five"]),
        ("['5', 'five']", ["5", "five"]),
        ('{"target": ["5"]}', {"target": ["5"]}),
        (["5"], ["5"]),
        ("[0, 1]", "[0, 1]"),
        ('{"x": 1}', '{"x": 1}'),
        ("['5", "['5"),
        (5.0, 5.0),
        (False, False),
    ],
)
def test_accepted_answers_in_text_are_a_list(given: Any, truth: Any) -> None:
    for record in ({"ground_truth": given}, {"reward_model": {"ground_truth": given}}, {"answer": given}):
        assert rows({"prompt": "a", **record})[0].ground_truth == truth
