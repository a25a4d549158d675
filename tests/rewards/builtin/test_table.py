from __future__ import annotations

from typing import Any

import pytest

from rl_compat.data.form.rows import PromptRow
from rl_compat.errors import ConfigError, DataError
from rl_compat.rewards.builtin.table import BUILTINS, find_builtin
from rl_compat.rewards.checks import BUILTIN_BY_SOURCE, builtin_of, check_rows, check_sources, truth_problem


def _rows(*sources_and_truths: tuple[str, Any]) -> list[PromptRow]:
    return [
        PromptRow(prompt="p", data_source=source, ground_truth=truth, row=i)
        for i, (source, truth) in enumerate(sources_and_truths)
    ]


def test_unknown_data_sources_are_reported_with_rows_known_ones_and_the_way_out() -> None:
    """A-DATA-04"""
    rows = _rows(("", "1"), ("/data/gsm8k", "1"), ("openai/gsm8k", "1"))
    with pytest.raises(DataError) as error:
        check_rows(rows, ("auto",))
    for literal in ("``, `/data/gsm8k`", "2 rows", "0, 1", "`openai/gsm8k`, `rlc/arithmetic`, `lighteval/MATH`"):
        assert literal in error.value.message
    assert "`/data/gsm8k`" in str(error.value.hint)
    assert "`openai/gsm8k`" in str(error.value.hint)
    assert "reward.functions=gsm8k" in str(error.value.hint)
    assert "my_rewards.py:my_function" in str(error.value.hint)


def test_a_named_reward_does_not_ask_for_the_data_source() -> None:
    check_rows(_rows(("", "1"), ("/data/gsm8k", "2")), ("gsm8k", "gsm8k_format"))
    check_rows(_rows(("", None)), ("mine.py:f",))


def test_distinct_sources_are_checked_for_auto_only() -> None:
    with pytest.raises(DataError) as error:
        check_sources(["openai/gsm8k", "nowhere"], ("auto",))
    assert "`nowhere`" in error.value.message
    check_sources(["nowhere"], ("gsm8k",))


def test_a_source_of_the_settings_comes_before_the_built_in_ones_and_may_be_a_pattern() -> None:
    sources = {"my/*": "exact_match", "openai/gsm8k": "mine.py:score"}
    assert builtin_of("my/data", sources) == "exact_match"
    assert builtin_of("openai/gsm8k", sources) == "mine.py:score"
    assert builtin_of("rlc/arithmetic", sources) == "arithmetic"
    check_rows(_rows(("my/data", "text"), ("openai/gsm8k", None)), ("auto",), sources)
    with pytest.raises(DataError) as error:
        check_rows(_rows(("my/data", None)), ("auto",), sources)
    assert "`exact_match`" in error.value.message
    assert "row 0" in error.value.message


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("openai/gsm8k", "gsm8k"),
        ("lighteval/MATH", "math"),
        ("DigitalLearningGmbH/MATH-lighteval", "math"),
        ("HuggingFaceH4/MATH-500", "math"),
        ("numina_olympiads", "math"),
        ("hiyouga/geometry3k", "math"),
        ("math", "math_dapo"),
        ("math_dapo", "math_dapo"),
        ("math_dapo_reasoning", "math_dapo"),
        ("aime2024", "math_dapo"),
        ("searchR1_hotpotqa", "qa_exact_match"),
        ("codecontests", None),
    ],
)
def test_verls_data_sources_have_their_rewards(source: str, name: str | None) -> None:
    assert builtin_of(source) == name


@pytest.mark.parametrize("source", ["codecontests", "apps", "codeforces", "taco"])
def test_programs_are_not_executed_and_that_is_said(source: str) -> None:
    with pytest.raises(DataError) as error:
        check_sources([source], ("auto",))
    assert f"`{source}`" in error.value.message
    assert f"`{source}`" in str(error.value.hint)


@pytest.mark.parametrize(
    ("name", "truth", "problem"),
    [
        ("multiple_choice", "B", None),
        ("multiple_choice", "Paris", "has the ground truth `Paris`, and the reward `multiple_choice` needs a letter"),
        ("qa_exact_match", {"target": ["a"]}, None),
        ("qa_exact_match", {"target": []}, "has no ground truth, which the reward `qa_exact_match` needs"),
        ("math", ["1", ""], "has no ground truth, which the reward `math` needs"),
        ("format", None, None),
        ("mine.py:f", None, None),
    ],
)
def test_why_a_ground_truth_cannot_be_used(name: str, truth: Any, problem: str | None) -> None:
    assert truth_problem(name, truth) == problem


@pytest.mark.parametrize(
    ("name", "arguments", "bound"),
    [
        ("repetition", {"ngram": "4", "other": "x"}, {"ngram": 4}),
        ("cosine_length", {"wrong_short": "-2"}, {"wrong_short": -2.0}),
        ("format", {"tags": "a,b"}, {"tags": "a,b"}),
        ("gsm8k", {"tags": "a"}, {}),
    ],
)
def test_arguments_get_their_types(name: str, arguments: dict[str, str], bound: dict[str, Any]) -> None:
    assert find_builtin(name).bind(name, arguments) == bound


def test_an_argument_of_another_type_is_named() -> None:
    with pytest.raises(ConfigError) as error:
        find_builtin("repetition").bind("repetition", {"ngram": "x"})
    assert "`reward.function_arguments.ngram`" in error.value.message
    assert "`x`" in error.value.message


@pytest.mark.parametrize("functions", [("auto",), ("gsm8k",), ("gsm8k_format", "gsm8k_strict")])
def test_a_row_without_ground_truth_is_named(functions: tuple[str, ...]) -> None:
    with pytest.raises(DataError) as error:
        check_rows(_rows(("openai/gsm8k", "1"), ("openai/gsm8k", None)), functions)
    assert "row 1" in error.value.message


def test_a_ground_truth_that_is_no_number_is_named() -> None:
    with pytest.raises(DataError) as error:
        check_rows(_rows(("openai/gsm8k", "many")), ("auto",))
    assert "`many`" in error.value.message
    assert "`gsm8k`" in error.value.message
    assert "row 0" in error.value.message


def test_every_source_has_a_reward_that_exists() -> None:
    assert set(BUILTIN_BY_SOURCE.values()) <= set(BUILTINS)


NUMBERS, TEXTS = ("gsm8k", "gsm8k_strict", "arithmetic"), ("exact_match", "qa_exact_match", "math")
STATED = {"gsm8k": "#### {}", "gsm8k_strict": "#### {}", "qa_exact_match": "<answer>{}</answer>"}


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        *((name, truth) for name in (*NUMBERS, *TEXTS) for truth in ("5", 5, 5.0)),
        *((name, truth) for name in TEXTS for truth in (["6", "5"], [6.0, 5])),
    ],
)
def test_a_number_or_a_text_can_be_used_and_matched(name: str, truth: Any) -> None:
    assert truth_problem(name, truth) is None
    if name != "math":
        assert BUILTINS[name].function(STATED.get(name, "{}").format(5), truth).correct is True


@pytest.mark.parametrize("truth", [True, [["5"]], {"answer": "5"}, ["5", False], float("nan")])
@pytest.mark.parametrize("name", [*NUMBERS, *TEXTS, "multiple_choice"])
def test_a_ground_truth_of_another_type_is_refused_with_its_type(name: str, truth: Any) -> None:
    problem = truth_problem(name, truth)
    assert problem is not None and f"({type(truth).__name__})" in problem and f"`{name}`" in problem
    with pytest.raises(DataError, match="row 0 "):
        check_rows(_rows(("", truth)), (name,))


@pytest.mark.parametrize("truth", [None, "", [], {}, {"target": []}])
@pytest.mark.parametrize("name", [*NUMBERS, *TEXTS, "multiple_choice"])
def test_an_empty_ground_truth_is_none(name: str, truth: Any) -> None:
    assert "no ground truth" in str(truth_problem(name, truth))


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("gsm8k", "It is 3, since 1+2=3."),
        ("gsm8k", "four"),
        ("gsm8k", ["5", "6"]),
        ("gsm8k_strict", "1,080"),
        ("gsm8k_strict", "four"),
        ("arithmetic", " "),
        ("multiple_choice", 3),
        ("multiple_choice", ["B", "Paris"]),
        ("math", "We add the numbers. " * 20),
    ],
)
def test_a_ground_truth_that_no_answer_equals_is_refused(name: str, truth: Any) -> None:
    assert truth_problem(name, truth) is not None


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("gsm8k", "3+4=7\n#### 7"),
        ("gsm8k", "$1,080"),
        ("gsm8k", "18 dollars"),
        ("math", r"We add \boxed{7}. " * 20),
        ("exact_match", "[0, 1]"),
    ],
)
def test_a_ground_truth_in_another_form_can_be_matched(name: str, truth: Any) -> None:
    assert truth_problem(name, truth) is None
