from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from fakes.work import growth

from rl_compat.errors import RewardError
from rl_compat.rewards.builtin.gsm8k import find_answer, gold_number, gsm8k, gsm8k_format, gsm8k_strict, numbers
from rl_compat.rewards.checks import truth_problem

GOLDEN = json.loads((Path(__file__).parent / "golden_gsm8k.json").read_text())


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["solution"][:24])
def test_strict_gives_what_verl_gives(case: dict) -> None:
    outcome = gsm8k_strict(case["solution"], case["ground_truth"])
    assert outcome.reward == case["strict"]
    assert outcome.extras["answer"] == case["strict_extract"]
    assert outcome.answer_found == (case["strict_extract"] is not None)


def test_strict_looks_at_the_last_300_characters_only() -> None:
    assert gsm8k_strict("#### 3" + "x" * 294, "3").reward == 1.0
    assert gsm8k_strict("#### 3" + "x" * 295, "3").reward == 0.0


def _rewards_with_filler(num_filler: int) -> tuple[float | None, float | None]:
    response = "2+40=42\n#### 42\n" + "filler text, " * (num_filler // 13)
    without_marker = "1,005 " * (num_filler // 6) + "42"
    return gsm8k(response, "42").reward, gsm8k(without_marker, "42").reward


@pytest.mark.parametrize("num_filler", [500, 20_000])
def test_a_right_answer_counts_whatever_follows_it(num_filler: int) -> None:
    """A-REW-01"""
    assert _rewards_with_filler(num_filler) == (1.0, 1.0)


def test_reading_a_long_response_takes_time_in_proportion() -> None:
    assert growth(_rewards_with_filler, small=200_000) < 8


def test_a_comma_is_not_a_number() -> None:
    """A-REW-02"""
    assert gsm8k("The total is 72 clips, altogether.", "72").reward == 1.0
    nothing = gsm8k("#### ,", "72")
    assert (nothing.reward, nothing.answer_found) == (0.0, False)


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("#### 18.00", 1.0),
        ("#### $18", 1.0),
        ("#### 18.", 1.0),
        ("#### 18 dollars", 1.0),
        ("#### 1,8", 0.0),
        ("#### 18.5", 0.0),
        ("#### **18**", 1.0),
        ("####18", 1.0),
        ("#### 36/2", 1.0),
        ("#### 18/5", 0.0),
    ],
)
def test_equal_numbers_are_equal_however_they_are_written(response: str, reward: float) -> None:
    """A-REW-03"""
    assert gsm8k(response, "18").reward == reward


@pytest.mark.parametrize(
    ("response", "truth", "reward"),
    [
        ("#### -3", "-3", 1.0),
        ("#### -3", "3", 0.0),
        ("#### 3", "-3", 0.0),
        ("from 10-7 we get #### 3", "3", 1.0),
        ("#### \u22123", "-3", 1.0),
        ("#### -$3", "-3", 1.0),
    ],
)
def test_the_sign_counts(response: str, truth: str, reward: float) -> None:
    """A-REW-04"""
    assert gsm8k(response, truth).reward == reward


@pytest.mark.parametrize(
    ("response", "truth", "reward"),
    [("#### 100", "10", 0.0), ("#### 150", "150", 1.0), ("#### 15", "150", 0.0), ("#### 10.0", "10", 1.0)],
)
def test_zeros_are_part_of_a_number(response: str, truth: str, reward: float) -> None:
    """A-REW-05"""
    assert gsm8k(response, truth).reward == reward


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("we have 5, then 6", "6"),
        ("#### 5 so the answer is 6", "5"),
        ("#### 5 and #### 6", "6"),
        ("#### 42 ####", "42"),
        ("it is 42 ####", None),
        ("#### The answer is 42.", "42"),
        ("", None),
        ("none", None),
    ],
)
def test_the_answer_is_the_number_after_the_last_marker_or_else_the_last_number(
    response: str, answer: str | None
) -> None:
    assert gsm8k(response, "0").extras["answer"] == answer


def test_a_ground_truth_may_be_a_number() -> None:
    assert gsm8k("#### 1,005", 1005).reward == 1.0
    assert gsm8k("#### 1005", "1,005").reward == 1.0


def test_a_ground_truth_that_is_no_number_is_an_error_of_the_data() -> None:
    with pytest.raises(RewardError) as error:
        gsm8k("#### 1", "many")
    assert "`many`" in error.value.message


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("the answer is 42", 0.0),
        ("### 42", 0.0),
        ("42 ####", 0.25),
        ("#### none, or 42", 0.25),
        ("#### 42 and more: #### 42", 0.5),
        ("#### 42\n" + "x" * 41, 0.5),
        ("6*7=42\n#### 42", 1.0),
        ("#### $1,042.50 dollars.\n", 1.0),
        ("#### wrong or right does not matter" + "\n#### 7", 0.5),
    ],
)
def test_format_rewards_the_form_in_steps(response: str, reward: float) -> None:
    assert gsm8k_format(response).reward == reward
    assert gsm8k_format(response).correct is None


@pytest.mark.parametrize(
    ("truth", "number"),
    [
        ("72", 72),
        (72, 72),
        ("$1,080", 1080),
        ("18 dollars", 18),
        ("3/4", Fraction(3, 4)),
        ("He sold 48/2 = 24, so 48 + 24 = 72\n#### 72", 72),
        ("#### 5\nno, wait: 9\n#### 72", 72),
        ("He sold 48/2 = 24, so 48 + 24 = 72", None),
        ("24 72", None),
        ("#### none", None),
        ("many", None),
        ("", None),
        (["72"], None),
        ({"target": "72"}, None),
        (True, None),
        (None, None),
    ],
)
def test_the_gold_number_is_that_of_the_last_marker_or_the_only_one(truth: object, number: Fraction | None) -> None:
    found = gold_number(truth)
    assert (None if found is None else found.value) == number
    assert (truth_problem("gsm8k", truth) is None) == (number is not None)


def test_a_whole_solution_as_ground_truth_pays_its_answer_and_no_number_on_the_way() -> None:
    solution = "He sold 48/2 = 24 in May.\n#### 72"
    assert gsm8k("#### 72", solution).reward == 1.0
    assert gsm8k("#### 48", solution).reward == 0.0
    with pytest.raises(RewardError):
        gsm8k("#### 48", "He sold 48/2 = 24 in May.")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,005 and 12,345,678", ["1005", "12345678"]),
        ("1,8", ["1", "8"]),
        ("1234,567", ["1234", "567"]),
        ("10-7", ["10", "7"]),
        ("10 - 7 = 3", ["10", "7", "3"]),
        ("x-3 (-3) =-3 \u22123", ["3", "-3", "-3", "-3"]),
        ("$5 -$5 $-5 \u20ac7", ["5", "-5", "-5", "7"]),
        ("18. 18.50 .5 -.5", ["18", "18.5", "0.5", "-0.5"]),
        ("3/4 5/2.", ["3/4", "5/2"]),
        ("+6", ["6"]),
        ("007", ["7"]),
        ("1/0 then 2", ["2"]),
        ("no, number . here, -", []),
    ],
)
def test_numbers_as_people_write_them(text: str, values: list[str]) -> None:
    assert [number.value for number in numbers(text)] == [Fraction(value) for value in values]


def test_the_last_number_is_the_last_of_all() -> None:
    for text in ("1, 2 and 3/4.", "5 then 1/0", "-7", "none"):
        values = list(numbers(text))
        assert find_answer(text) == (values[-1] if values else None)


def test_a_number_knows_where_it_ends() -> None:
    text = "is $1,005 in all"
    number = next(numbers(text))
    assert (number.text, text[number.end :]) == ("$1,005", " in all")


def test_a_run_of_digits_too_long_to_be_an_answer_is_skipped() -> None:
    assert find_answer("9" * 5000) is None


@pytest.mark.parametrize("piece", ["1", "1,", ",111", "111,", "1.5 ", "1/", "$ ", "-", "1-", "$-"])
def test_reading_long_text_takes_time_in_proportion(piece: str) -> None:
    assert growth(lambda size: list(numbers(piece * (size // len(piece)))), small=20_000) < 8
