from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_compat.errors import ConfigError
from rl_compat.rewards.processes.custom import Call, CustomFunction, load_function, outcome_of, split_spec

CALL = Call(row=4, data_source="mine", solution_str="text", ground_truth="42", extra_info={"k": 1}, response_length=3)

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(source: str) -> Path:
        path = tmp_path / "mine.py"
        path.write_text(source)
        return path

    return to_file


def _load(file: Path, name: str = "f", **arguments: str) -> CustomFunction:
    return load_function(file, name, arguments)


def test_a_spec_is_a_file_and_a_function(write: Write) -> None:
    file = write("")
    assert split_spec(f"{file}:score_it") == (file, "score_it")
    assert split_spec(str(file)) == (file, "compute_score")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        split_spec(f"{tmp_path / 'nothing.py'}:f")
    assert f"`{tmp_path / 'nothing.py'}`" in error.value.message


def test_a_missing_function_names_the_nearest_and_those_defined(write: Write) -> None:
    file = write("def compute_score(**k): ...\nvalue = 3\n")
    with pytest.raises(ConfigError) as error:
        _load(file, "compute_scor")
    assert "`compute_scor`" in error.value.message
    assert "`compute_score`" in str(error.value.hint)
    with pytest.raises(ConfigError) as error:
        _load(file, "value")
    assert "`value`" in error.value.message
    assert "`compute_score`" in str(error.value.hint)


@pytest.mark.parametrize(
    ("source", "literals"),
    [
        ("x = 1\nimport nothing_like_this\n", ["ModuleNotFoundError", "nothing_like_this", "line 2 of `mine.py`"]),
        ("def f(:\n", ["SyntaxError", "line 1 of `mine.py`"]),
        ("\n\nraise SystemExit('stop')\n", ["SystemExit: stop", "line 3 of `mine.py`"]),
    ],
)
def test_an_import_error_names_the_users_line(write: Write, source: str, literals: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        _load(write(source))
    assert all(literal in error.value.message for literal in literals)


def test_a_function_gets_only_the_keywords_it_takes(write: Write) -> None:
    file = write(
        "def f(solution_str, ground_truth=None): return [solution_str, ground_truth]\n"
        "def g(**everything): return sorted(everything.items(), key=lambda item: item[0])\n"
    )
    assert _load(file).call(CALL) == ["text", "42"]
    assert _load(file, "g").call(CALL) == [
        ("data_source", "mine"),
        ("extra_info", {"k": 1}),
        ("ground_truth", "42"),
        ("response_length", 3),
        ("solution_str", "text"),
    ]


def test_extra_arguments_reach_the_function_that_takes_them(write: Write) -> None:
    file = write("def f(solution_str, scale='1'): return scale\ndef g(solution_str): return 0\n")
    assert _load(file, scale="3").call(CALL) == "3"
    assert _load(file, "g", scale="3").arguments == {}


@pytest.mark.parametrize("signature", ["text, gold", "solution_str, gold, text", "text, gold, /"])
def test_parameters_that_nobody_gives_are_named(write: Write, signature: str) -> None:
    file = write(f"def f({signature}): return 0\n")
    with pytest.raises(ConfigError) as error:
        _load(file)
    assert "`f`" in error.value.message
    assert "`text`" in error.value.message
    assert "`gold`" in error.value.message
    assert "solution_str" in str(error.value.hint)


def test_modules_in_the_same_folder_can_be_imported(write: Write) -> None:
    file = write("from next_to_mine import VALUE\ndef f(**k): return VALUE\n")
    (file.parent / "next_to_mine.py").write_text("VALUE = 5\n")
    assert _load(file).call(CALL) == 5


def test_a_batched_function_is_known_by_name_or_attribute_and_gets_lists(write: Write) -> None:
    file = write(
        "def compute_scores(solution_strs, ground_truths): return list(zip(solution_strs, ground_truths))\n"
        "def f(extra_infos, **rest): return extra_infos\n"
        "f.batched = True\n"
    )
    named = _load(file, "compute_scores")
    assert named.batched
    assert named.call_batch([CALL, CALL]) == [("text", "42"), ("text", "42")]
    assert _load(file).call_batch([CALL]) == [{"k": 1}]


@pytest.mark.parametrize(
    ("values", "got"),
    [
        ([1.0], "returned 1 rewards, expected 4"),
        ([1.0] * 3, "returned 3 rewards, expected 4"),
        ([1.0] * 5, "returned 5 rewards, expected 4"),
        (1.0, "returned `1.0`, expected a list of 4 rewards"),
        (None, "returned `None`, expected a list of 4 rewards"),
    ],
)
def test_a_batch_of_another_length_is_never_stretched(write: Write, values: object, got: str) -> None:
    """A-REW-08"""
    function = _load(write("def compute_scores(**k): ...\n"), "compute_scores")
    outcomes = function.outcomes(values, [CALL] * 4)
    assert [outcome.reward for outcome in outcomes] == [None] * 4
    assert {(o.failure.kind, o.failure.message) for o in outcomes if o.failure} == {
        ("misuse", f"`compute_scores` {got}")
    }


def test_a_function_written_for_trl_gets_completions_prompts_and_the_columns_of_the_data(write: Write) -> None:
    file = write(
        "def named(completions, prompts, k, scale=1.0): return [completions, prompts, k, scale]\n"
        "def every(completions, **columns): return sorted(columns)\n"
    )
    chat = replace(CALL, messages=[{"role": "user", "content": "q"}])
    text = replace(CALL, messages="q", extra_info={})
    named = _load(file, "named", scale="2")
    assert named.batched
    assert named.call_batch([chat, text]) == [
        [[{"role": "assistant", "content": "text"}], "text"],
        [[{"role": "user", "content": "q"}], "q"],
        [1, None],
        "2",
    ]
    columns = ["completion_ids", "data_source", "ground_truth", "k", "prompts"]
    assert _load(file, "every").call_batch([chat]) == columns


def test_a_crash_names_function_row_and_the_users_line(write: Write) -> None:
    function = _load(write("def f(solution_str):\n    x = 1\n    return {}[solution_str]\n"))
    with pytest.raises(KeyError) as error:
        function.call(CALL)
    failure = function.crashed(error.value, CALL).failure
    assert failure is not None
    for literal in ("`f`", "row 4", "KeyError: 'text'", "line 3 of `mine.py`"):
        assert literal in failure.message


def _outcome(value: Any) -> Any:
    return outcome_of(value, function="f", row=3)


@pytest.mark.parametrize("value", [1, 1.0, True, np.float32(1), np.array(1.0), torch.tensor(1.0), Fraction(1)])
def test_any_kind_of_number_is_a_reward(value: Any) -> None:
    outcome = _outcome(value)
    assert outcome.reward == 1.0
    assert type(outcome.reward) is float


def test_a_dict_gives_its_score_and_keeps_the_rest_as_plain_values() -> None:
    """A-REW-12"""
    outcome = _outcome(OrderedDict(score=np.float64(0.5), acc=1, tags=np.array([1, 2]), thing=object))
    assert (outcome.reward, outcome.correct) == (0.5, True)
    assert outcome.extras == {"acc": 1, "tags": [1, 2], "thing": "`<class 'object'>`"}


def test_a_dict_without_score_lists_the_keys_found() -> None:
    """A-REW-12"""
    failure = _outcome({"acc": 1, "other": 2}).failure
    assert failure.kind == "misuse"
    for literal in ("`f`", "`acc`, `other`", "row 3", "`score`"):
        assert literal in failure.message


@pytest.mark.parametrize("value", [None, {"score": None}])
def test_none_is_a_failure_that_names_function_and_row(value: Any) -> None:
    """A-REW-07"""
    outcome = _outcome(value)
    assert outcome.reward is None
    assert outcome.failure.kind == "error"
    for literal in ("`f`", "`None`", "row 3"):
        assert literal in outcome.failure.message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"score": float("-inf")}])
def test_a_value_that_is_not_finite_is_a_failure(value: Any) -> None:
    failure = _outcome(value).failure
    assert failure.kind == "error"
    assert "row 3" in failure.message


@pytest.mark.parametrize("value", ["1.0", 1j, [1.0], np.array([1.0]), torch.tensor([1.0, 2.0]), object()])
def test_a_value_of_another_kind_is_misuse(value: Any) -> None:
    failure = _outcome(value).failure
    assert failure.kind == "misuse"
    assert "row 3" in failure.message
