from __future__ import annotations

import json
from typing import Any

import pytest
from fakes.encoders import CharacterEncoder

from rl_compat.data.encode.training_data import TrainingData, load_training
from rl_compat.data.form.rows import PromptRow
from rl_compat.data.order.fingerprint import MAX_SUMS, Fingerprint
from rl_compat.data.read.reading import Reading
from rl_compat.data.read.records import as_source
from rl_compat.errors import DataError

RECORDS = [{"prompt": f"{row}", "ground_truth": str(row), "note": row} for row in range(12)]


def load(records: list[dict[str, Any]], *, streaming: bool = False, weights: tuple[float, ...] = ()) -> TrainingData:
    halves = [as_source(records[:6], name="a"), as_source(records[6:], name="b")]
    reading = Reading(task="prompts", bad_rows="drop")
    limits: dict[str, Any] = {"chat": CharacterEncoder(), "max_prompt_length": 8}
    return load_training(halves, reading, **limits, streaming=streaming, weights=weights)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("weights", [(), (1.0, 2.0)])
@pytest.mark.parametrize("changes", [{"prompt": "x"}, {"ground_truth": "x"}])
def test_a_changed_row_is_named_when_a_position_is_restored(
    streaming: bool, weights: tuple[float, ...], changes: dict[str, str]
) -> None:
    order = load(RECORDS, streaming=streaming, weights=weights).order(2, shuffle=True, seed=1)
    next(order)
    state = json.loads(json.dumps(order.state_dict()))
    edited = [record | changes if row in (3, 8) else record for row, record in enumerate(RECORDS)]
    with pytest.raises(DataError, match="rows 3, 8") as error:
        load(edited, streaming=streaming, weights=weights).order(2, shuffle=True, seed=1).load_state_dict(state)
    assert error.value.exit_code == 2 and "`data.on_change=restart`" in str(error.value.hint)
    same = load(RECORDS, streaming=not streaming, weights=weights).order(2, shuffle=True, seed=1)
    same.load_state_dict(state)
    assert next(same) == next(order)


def test_a_row_has_its_number_in_the_file_and_other_columns_may_change() -> None:
    records: list[dict[str, Any]] = [{"prompt": None}, *RECORDS[1:]]
    state = load(records).order(2, shuffle=True, seed=1).state_dict()
    noted = [record | {"note": "new"} for record in records]
    load(noted).order(2, shuffle=True, seed=1).load_state_dict(state)
    with pytest.raises(DataError, match=r"row 1\b"):
        load([records[0], {"prompt": "x"}, *records[2:]]).order(2, shuffle=True, seed=1).load_state_dict(state)


def test_a_checkpoint_without_a_fingerprint_is_continued() -> None:
    order = load(RECORDS).order(2, shuffle=True, seed=1)
    state = order.state_dict()
    del state["rows"]
    order.load_state_dict(state)


def test_the_state_of_many_rows_is_small_and_names_the_place() -> None:
    rows = [PromptRow(prompt=str(row % 7), row=row) for row in range(MAX_SUMS + 10)]
    before = Fingerprint(rows)
    rows[1001] = PromptRow(prompt="x", row=1001)
    assert len(before.state()) < 350_000
    assert Fingerprint(rows).changed(before.state()) == [1000]
