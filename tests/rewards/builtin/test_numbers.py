from __future__ import annotations

from fractions import Fraction

import pytest
from fakes.work import growth

from rl_compat.rewards.builtin.gsm8k import find_answer, numbers


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
