from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from fakes.encoders import CharacterEncoder

from rl_compat.data.encode.training_data import TrainingData, load_training
from rl_compat.data.order.batches import MixtureOrder, PromptOrder, epoch_order
from rl_compat.data.read.reading import Reading
from rl_compat.errors import DataError


def _take(order: PromptOrder, count: int) -> list[list[int]]:
    return [next(order) for _ in range(count)]


def test_an_epoch_visits_each_row_at_most_once_and_drops_the_rest() -> None:
    order = PromptOrder(7, 3, shuffle=True, seed=1)
    assert order.steps_per_epoch == 2
    first = _take(order, 2)
    assert len({row for batch in first for row in batch}) == 6
    assert order.position == (0, 6)
    next(order)
    assert order.position == (1, 3)


def test_without_shuffling_rows_come_in_their_order_every_epoch() -> None:
    assert _take(PromptOrder(5, 2, shuffle=False, seed=1), 4) == [[0, 1], [2, 3], [0, 1], [2, 3]]


def test_an_epochs_order_is_a_permutation_that_depends_on_seed_and_epoch_only() -> None:
    orders = {(s, e): tuple(epoch_order(50, shuffle=True, seed=s, epoch=e)) for s in (1, 2) for e in (0, 1, 11)}
    assert len(set(orders.values())) == 6
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert orders[2, 11] == tuple(epoch_order(50, shuffle=True, seed=2, epoch=11))


def test_the_order_of_a_seed_is_the_same_in_every_release() -> None:
    assert list(epoch_order(8, shuffle=True, seed=1, epoch=0)) == [5, 7, 2, 1, 6, 3, 0, 4]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_a_restored_position_continues_as_if_never_interrupted(steps: int) -> None:
    whole = PromptOrder(7, 3, shuffle=True, seed=1)
    _take(whole, steps)
    state = json.loads(json.dumps(whole.state_dict()))
    resumed = PromptOrder(7, 3, shuffle=True, seed=1)
    resumed.load_state_dict(state)
    assert resumed.position == whole.position
    assert _take(resumed, 6) == _take(whole, 6)


def test_a_position_in_other_data_or_another_order_is_refused() -> None:
    state = PromptOrder(7, 3, shuffle=True, seed=1).state_dict()
    with pytest.raises(DataError, match=r"\b7\b.*\b8\b"):
        PromptOrder(8, 3, shuffle=True, seed=1).load_state_dict(state)
    with pytest.raises(DataError, match=r"`data.seed` 1,.* 2"):
        PromptOrder(7, 3, shuffle=True, seed=2).load_state_dict(state)


def test_a_run_may_go_on_with_another_batch_size() -> None:
    small = PromptOrder(6, 2, shuffle=False, seed=1)
    next(small)
    large = PromptOrder(6, 4, shuffle=False, seed=1)
    large.load_state_dict(small.state_dict())
    assert _take(large, 2) == [[2, 3, 4, 5], [0, 1, 2, 3]]


def test_a_batch_larger_than_the_data_is_refused() -> None:
    """A-DATA-11"""
    with pytest.raises(DataError, match=r"\b3 rows\b.*\b8\b"):
        PromptOrder(3, 8, shuffle=True, seed=1)


def _order(sizes: tuple[int, ...], weights: tuple[float, ...], batch_size: int = 5, *, seed: int = 1) -> MixtureOrder:
    return MixtureOrder(sizes, weights, batch_size, shuffle=True, seed=seed)


def _data(folder: Path, *sizes: int, limit: int = 16, **options: object) -> TrainingData:
    names = []
    for index, size in enumerate(sizes):
        path = folder / f"{index}.jsonl"
        path.write_text("".join(json.dumps({"prompt": f"{index}:{row}"}) + "\n" for row in range(size)))
        names.append(str(path))
    reading = Reading(task="prompts")
    return load_training(names, reading, chat=CharacterEncoder(), max_prompt_length=limit, **options)  # type: ignore[arg-type]


def test_every_prefix_holds_the_shares_to_one_row() -> None:
    order = _order((50, 30, 20), (5, 3, 2), 1)
    drawn = Counter[int]()
    for count in range(1, 400):
        row = next(order)[0]
        drawn[0 if row < 50 else 1 if row < 80 else 2] += 1
        assert all(abs(drawn[index] - share * count) <= 1 for index, share in enumerate((0.5, 0.3, 0.2)))


def test_each_source_is_passed_over_whole_before_any_row_comes_again() -> None:
    order = _order((4, 12), (1, 1), 8)
    rows = [row for _ in range(3) for row in next(order)]
    small = [row for row in rows if row < 4]
    assert [sorted(small[start : start + 4]) for start in range(0, 12, 4)] == [[0, 1, 2, 3]] * 3
    assert sorted(row for row in rows if row >= 4) == list(range(4, 16))
    assert small[:4] != small[4:8] or small[4:8] != small[8:]


def test_an_epoch_is_as_many_rows_as_all_sources_have() -> None:
    order = _order((4, 12), (1, 1), 5)
    assert order.steps_per_epoch == 3
    for _ in range(4):
        next(order)
    assert order.position == (1, 5)


@pytest.mark.parametrize("steps", [0, 1, 3, 7])
def test_a_restored_mixture_continues_as_if_never_interrupted(steps: int) -> None:
    whole = _order((7, 13, 3), (0.5, 0.2, 0.3))
    for _ in range(steps):
        next(whole)
    resumed = _order((7, 13, 3), (0.5, 0.2, 0.3))
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert resumed.position == whole.position
    assert [next(resumed) for _ in range(9)] == [next(whole) for _ in range(9)]


def test_a_position_in_another_mixture_is_refused() -> None:
    state = _order((4, 12), (1, 1)).state_dict()
    with pytest.raises(DataError, match=r"`data.mixture_weights` 1 \+ 1,.* 1 \+ 2"):
        _order((4, 12), (1, 2)).load_state_dict(state)
    with pytest.raises(DataError, match=r"4 \+ 12,.* 4 \+ 13"):
        _order((4, 13), (1, 1)).load_state_dict(state)
    with pytest.raises(DataError, match=r"4 \+ 12,.* 16"):
        PromptOrder(16, 4, shuffle=True, seed=1).load_state_dict(state)


def test_files_are_mixed_by_weight_and_dropped_rows_leave_no_gap(tmp_path: Path) -> None:
    data = _data(tmp_path, 12, 4, weights=(1, 3), limit=3)
    assert "2 of 16 rows" in data.notes[0]
    assert data.counts == (10, 4)
    order = data.order(8, shuffle=True, seed=1)
    texts = [data.prompts[row].text for _ in range(2) for row in next(order)]
    assert Counter(text[0] for text in texts) == {"0": 4, "1": 12}


def test_a_sample_limit_is_shared_by_weight(tmp_path: Path) -> None:
    data = _data(tmp_path, 12, 12, weights=(1, 3), max_samples=8)
    assert data.counts == (2, 6)


def test_a_source_without_usable_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "long.jsonl").write_text('{"prompt": "far too long"}\n')
    (tmp_path / "good.jsonl").write_text('{"prompt": "ok"}\n')
    names = [str(tmp_path / "long.jsonl"), str(tmp_path / "good.jsonl")]
    reading = Reading(task="prompts")
    with pytest.raises(DataError, match=r"long\.jsonl`.*`data.mixture_weights`"):
        load_training(names, reading, chat=CharacterEncoder(), max_prompt_length=5, weights=(1, 1))


def test_without_weights_files_follow_each_other(tmp_path: Path) -> None:
    data = _data(tmp_path, 3, 2)
    order = data.order(5, shuffle=False, seed=1)
    assert [data.prompts[row].text for row in next(order)] == ["0:0", "0:1", "0:2", "1:0", "1:1"]
    shuffled = data.order(2, shuffle=True, seed=3)
    plain = PromptOrder(5, 2, shuffle=True, seed=3)
    assert [next(shuffled) for _ in range(6)] == [next(plain) for _ in range(6)]
