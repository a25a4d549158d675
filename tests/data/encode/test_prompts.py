from __future__ import annotations

import pytest
from fakes.encoders import CharacterEncoder

from rl_compat.data.encode.prompts import Overlong, build_prompts, check_batch_size, cut
from rl_compat.data.form.rows import PromptRow
from rl_compat.errors import DataError, ModelError

TEXTS = ("0123456789", "0123456789abcdef", "0123456789abcdefg")
"10, 16 and 17 tokens"


def _rows(texts: tuple[str, ...] = TEXTS) -> list[PromptRow]:
    return [PromptRow(prompt=text, data_source="mine", ground_truth=i, row=i) for i, text in enumerate(texts)]


def _texts(overlong: Overlong, *, limit: int = 16) -> list[str]:
    built = build_prompts(_rows(), chat=CharacterEncoder(), max_prompt_length=limit, overlong=overlong)
    return ["".join(map(chr, prompt.token_ids)) for prompt in built.prompts]


def test_filter_keeps_a_prompt_of_exactly_the_limit_and_says_what_it_dropped() -> None:
    """A-DATA-05"""
    built = build_prompts(_rows(), chat=CharacterEncoder(), max_prompt_length=16, overlong="filter")
    assert [prompt.row for prompt in built.prompts] == [0, 1]
    assert len(built.prompts) == 2
    assert len(built.notes) == 1 and all(part in built.notes[0] for part in ("1 of 3", "16", "17", "row 2"))


def test_error_names_the_row_and_both_lengths() -> None:
    """A-DATA-05"""
    with pytest.raises(DataError, match=r"row 2 .*\b17\b.*\b16\b") as error:
        build_prompts(_rows(), chat=CharacterEncoder(), max_prompt_length=16, overlong="error")
    assert "data.max_prompt_length=17" in str(error.value.hint)


def test_left_right_and_middle_cut_where_they_say() -> None:
    """A-DATA-05"""
    assert _texts("left")[2] == "123456789abcdefg"
    assert _texts("right")[2] == "0123456789abcdef"
    assert _texts("middle")[2] == "01234567" + "9abcdefg"
    assert _texts("middle", limit=5) == ["01789", "01def", "01efg"]
    built = build_prompts(_rows(), chat=CharacterEncoder(), max_prompt_length=16, overlong="left")
    assert len(built.prompts) == 3
    assert len(built.notes) == 1 and all(part in built.notes[0] for part in ("1 of 3", "left", "17", "row 2"))


def test_cutting_to_a_length_of_one_keeps_one_token() -> None:
    assert [cut([1, 2, 3], 1, keep=side) for side in ("left", "right", "middle")] == [[3], [1], [3]]  # type: ignore[arg-type]


def test_prompts_carry_their_row() -> None:
    row = PromptRow(prompt="abc", data_source="mine", ground_truth={"a": 1}, extra_info={"k": 2}, row=7)
    prompt = build_prompts([row], chat=CharacterEncoder(), max_prompt_length=16).prompts[0]
    assert (prompt.text, prompt.token_ids) == ("abc", (97, 98, 99))
    assert (prompt.data_source, prompt.ground_truth, prompt.extra_info, prompt.row) == ("mine", {"a": 1}, {"k": 2}, 7)


def test_dropping_every_row_is_an_error_that_counts_them() -> None:
    """A-DATA-11"""
    with pytest.raises(DataError, match=r"\b3 rows\b.*\b10\b.*\b4\b"):
        build_prompts(_rows(), chat=CharacterEncoder(), max_prompt_length=4, overlong="filter")


def test_fewer_rows_than_a_batch_is_an_error_with_the_largest_valid_batch() -> None:
    """A-DATA-11"""
    with pytest.raises(DataError, match=r"\b3 rows\b.*\b8\b") as error:
        check_batch_size(3, 8)
    assert "`trainer.batch_size=3`" in str(error.value.hint)
    with pytest.raises(DataError):
        check_batch_size(0, 8)
    check_batch_size(8, 8)


def test_a_row_without_tokens_is_named() -> None:
    class Silent:
        def encode(self, prompt: object, tools: object = ()) -> tuple[str, list[int]]:
            return "", []

    with pytest.raises(DataError, match="rows 0, 1, 2"):
        build_prompts(_rows(), chat=Silent(), max_prompt_length=16)


def test_a_row_that_the_template_refuses_is_named() -> None:
    class Refusing:
        def encode(self, prompt: object, tools: object = ()) -> tuple[str, list[int]]:
            raise ModelError("the chat template refuses role `tool`", hint="use another")

    with pytest.raises(DataError, match=r"`tool`.*rows 0, 1, 2") as error:
        build_prompts(_rows(), chat=Refusing(), max_prompt_length=16)
    assert str(error.value.hint).startswith("use another") and "`data.bad_rows=drop`" in str(error.value.hint)


def test_no_rows_are_no_prompts() -> None:
    assert build_prompts([], chat=CharacterEncoder(), max_prompt_length=16).prompts == ()
