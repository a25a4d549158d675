from __future__ import annotations

import json

import pytest

from rl_compat.data.order.batches import PromptOrder, epoch_order
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
