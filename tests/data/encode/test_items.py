"""Rows with responses as items: limits, empty sides, pairs of whole texts, mismatched responses, batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fakes.models import character_tokenizer

from rl_compat.data.encode.items import (
    Encoding,
    ItemBatch,
    ItemEncoder,
    ItemSet,
    item_batch,
    mismatched,
)
from rl_compat.data.form.rows import LabelledRow, PreferenceRow, SupervisedRow
from rl_compat.errors import DataError
from rl_compat.models.chat import ChatEncoder
from rl_compat.models.tokenizer import describe_tokenizer

CHAT = ChatEncoder(describe_tokenizer(character_tokenizer()))


def encoding(**changes: Any) -> Encoding:
    return Encoding(**({"chat": CHAT, "max_prompt_length": 10, "max_response_length": 4} | changes))


def encode(algorithm: str, rows: Any, how: Encoding) -> ItemSet:
    return ItemEncoder(algorithm, how).encode_all(rows)


def pair(prompt: str, chosen: str, rejected: str, **others: Any) -> PreferenceRow:
    return PreferenceRow(prompt=prompt, chosen=chosen, rejected=rejected, **others)


def text(ids: tuple[int, ...]) -> str:
    return CHAT.bundle.tokenizer.decode(list(ids))


def supervised(*texts: tuple[str, str]) -> list[SupervisedRow]:
    return [SupervisedRow(prompt=prompt, response=response, row=row) for row, (prompt, response) in enumerate(texts)]


def test_rows_over_a_limit_are_left_out_and_said() -> None:
    rows = supervised(("1+1=", "2"), ("1+1=", "22222"), ("123456+1=", "2"))
    found = encode("sft", rows, encoding())
    assert [item.row for item in found.items] == [0]
    assert any(all(part in note for part in ("2 of 3", "10", "4", "rows 1, 2")) for note in found.notes)


def test_an_overlong_row_can_be_an_error() -> None:
    with pytest.raises(DataError, match=r"1 of 1 rows.*row 0"):
        encode("sft", supervised(("1+1=", "22222")), encoding(overlong="error"))


@pytest.mark.parametrize(("side", "prompt"), [("left", "1=<|end|><|assistant|>"), ("right", "<|user|>112")])
def test_a_cut_row_keeps_the_beginning_of_its_response(side: str, prompt: str) -> None:
    found = encode("sft", supervised(("112+1=", "22222")), encoding(overlong=side, max_prompt_length=4))
    (example,) = found.items[0].examples
    assert (text(example.prompt_ids), text(example.response_ids)) == (prompt, "2222")
    assert f"cut ({side})" in found.notes[0]


def test_empty_sides_are_refused_with_the_numbers_of_their_rows() -> None:
    rows = [pair("1+1=", "2", "3", row=0), pair("1+1=", "", "3", row=1), pair("1+1=", "2", "", row=2)]
    with pytest.raises(DataError, match=r"2 of 3 rows.*in rows 1, 2"):
        encode("dpo", rows, encoding())
    dropped = encode("dpo", rows, encoding(bad_rows="drop"))
    assert [item.row for item in dropped.items] == [0]
    assert any("rows 1, 2" in note for note in dropped.notes)
    with pytest.raises(DataError, match="1 rows"):
        encode("dpo", rows[1:2], encoding(bad_rows="drop"))


def test_a_pair_has_one_prompt_and_its_margin() -> None:
    (item,) = encode("dpo", [pair("1+1=", "2", "3", margin=1.5, row=7)], encoding()).items
    chosen, rejected = item.examples
    assert chosen.prompt_ids == rejected.prompt_ids
    assert (text(chosen.response_ids), text(rejected.response_ids)) == ("2<|end|>", "3<|end|>")
    assert (item.preferred, item.margin, item.row) == ((True, False), 1.5, 7)


def test_whole_texts_share_their_beginning_as_the_prompt() -> None:
    (item,) = encode("dpo", [pair("", "ab cd", "ab xyz")], encoding(max_response_length=8)).items
    assert [text(example.prompt_ids) for example in item.examples] == ["ab ", "ab "]
    assert [text(example.response_ids) for example in item.examples] == ["cd<|end|>", "xyz<|end|>"]


def test_equal_sides_are_said() -> None:
    found = encode("dpo", [pair("1+1=", "2", "2", row=4)], encoding())
    assert any("row 4" in note for note in found.notes)


def test_a_scored_conversation_is_read_at_its_last_token() -> None:
    (item,) = encode("reward_model", [pair("1+1=", "2", "3")], encoding(max_prompt_length=20)).items
    assert text(item.examples[0].prompt_ids) == "<|user|>1+1=<|end|><|assistant|>2<|end|>"
    batch = item_batch([item])
    assert batch.response_lengths.tolist() == [1, 1]
    assert batch.response_mask.all()


def test_everything_learned_counts_the_prompt_too() -> None:
    (item,) = encode("sft", supervised(("1+1=", "2")), encoding(learns_prompt=True)).items
    assert len(item.examples[0].prompt_ids) == 1
    assert sum(item.examples[0].learned) == 8


def test_mismatched_responses_come_from_the_next_other_prompt() -> None:
    rows = [
        LabelledRow(prompt=prompt, response=response, label=True)
        for prompt, response in (("1+1=", "2"), ("1+1=", "3"), ("2+2=", "4"), ("3+3=", "6"))
    ]
    found = mismatched(encode("kto", rows, encoding()).items)
    assert [text(item.examples[0].response_ids) for item in found] == ["4<|end|>", "4<|end|>", "6<|end|>", "2<|end|>"]
    assert [text(item.examples[0].prompt_ids)[8:12] for item in found] == ["1+1=", "1+1=", "2+2=", "3+3="]
    with pytest.raises(DataError):
        mismatched(encode("kto", rows[:2], encoding()).items)


def test_a_batch_knows_the_item_the_side_and_the_margin_of_each_row() -> None:
    rows = [pair("1+1=", "2", "33", margin=0.5), pair("1+2=", "3", "4")]
    batch = item_batch(encode("dpo", rows, encoding()).items, default_margin=0.25)
    assert batch.groups.tolist() == [0, 0, 1, 1]
    assert batch.preferred.tolist() == [True, False, True, False]
    assert batch.margins.tolist() == [0.5, 0.5, 0.25, 0.25]
    picked = batch.with_(reference=torch.arange(4.0)).select([3, 0])
    assert isinstance(picked, ItemBatch)
    assert picked.reference.tolist() == [3.0, 0.0]
    assert picked.response_ids.shape == (2, 2)
