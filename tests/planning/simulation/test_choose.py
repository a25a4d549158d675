"""Which division of the devices is best, and when dividing them pays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rl_compat.planning.simulation.choose import compare
from rl_compat.planning.simulation.flow import Flow

BALANCED = Flow(
    on_update="continue", batch_rows=16, num_slots=64, decode_seconds=0.1, row_seconds=1.0, handover_seconds=0.2
)


def test_a_long_tail_on_many_devices_pays() -> None:
    tail = [20] * 15 + [1000]
    found = compare(BALANCED, tail, num_devices=8)
    assert found.best is not None
    assert found.gain > 2
    assert "pays" in found.verdict
    assert found.as_json()["pays"] is True
    assert found.best.flow.generating + found.best.flow.learning == 8


def test_equal_short_responses_on_two_devices_do_not_pay() -> None:
    """Generation of 10 s on any number of devices, learning of 16 s on one: in turn 18 s, divided at least 16.2."""
    flow = replace(BALANCED, num_slots=8, sequence_seconds=0.1)
    found = compare(flow, [10], num_devices=2)
    assert found.gain < 1.05
    assert "does not pay" in found.verdict


def test_the_smallest_staleness_that_is_nearly_as_fast_is_best() -> None:
    found = compare(replace(BALANCED, row_seconds=10.0), [10], num_devices=4)
    assert found.best is not None
    assert found.best.flow.max_staleness == 1
    assert [item.flow.max_staleness for item in found.others] == [2, 4, 1, 1]
    assert [item.flow.on_update for item in found.others] == ["continue", "continue", "wait", "abort"]


@pytest.mark.parametrize(("num_devices", "num_shards"), [(1, 1), (4, 4)])
def test_devices_that_all_learn_together_cannot_be_divided(num_devices: int, num_shards: int) -> None:
    found = compare(replace(BALANCED, num_shards=num_shards), [10], num_devices=num_devices)
    assert found.best is None
    assert "cannot pay" in found.verdict
    assert found.as_json()["best"] is None


def test_learners_are_a_multiple_of_the_shards() -> None:
    found = compare(replace(BALANCED, num_shards=4), [10, 50], num_devices=10)
    assert found.best is not None
    assert found.best.flow.learning in (4, 8)


def test_a_part_of_a_thousand_devices_takes_as_long_as_all() -> None:
    flow = Flow(
        on_update="continue", batch_rows=16_000, num_slots=64, decode_seconds=0.02, row_seconds=1.0, num_shards=1000
    )
    found = compare(flow, [100, 200, 400], num_devices=1000)
    assert found.synchronous.flow.generating == 1000
    assert 3600 / found.synchronous.outcome.steps_per_hour == pytest.approx(16_000 / 1000 + 400 * 0.02, rel=0.01)
