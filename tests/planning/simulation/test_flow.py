"""The simulated run against closed forms and numbers worked out by hand."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_compat.config.types import OnUpdate
from rl_compat.errors import UsageError
from rl_compat.planning.simulation.flow import Flow, simulate

TWO_LENGTHS = Flow(on_update="continue", batch_rows=4, num_slots=8, decode_seconds=1.0, step_seconds=1.0)
"8 slots, steps of 4 rows, an update of one unit"


@pytest.mark.parametrize(("max_staleness", "seconds"), [(0, 3000), (1, 1501), (2, 1003)])
def test_two_thousand_rows_of_one_and_five_tokens_take_what_the_bound_allows(
    max_staleness: int, seconds: float
) -> None:
    """ASYNC-05: a step of bound S takes (5 + 1) / (S + 1), and the first one all of it."""
    found = simulate(replace(TWO_LENGTHS, max_staleness=max_staleness), [1, 5], num_steps=500)
    assert found.seconds == seconds
    assert (found.mean_staleness, found.max_staleness) == (max_staleness, max_staleness)
    assert found.tokens_lost == 0.0


@pytest.mark.parametrize("steps_in_flight", [1, 2, 4])
def test_with_slots_for_m_steps_and_learning_for_nothing_the_mean_staleness_is_half_of_3m_minus_1(
    steps_in_flight: int,
) -> None:
    """The m steps that start together at version v are trained at the versions v + m to v + 2m - 1."""
    flow = Flow(
        on_update="continue",
        generating=steps_in_flight,
        num_slots=4,
        batch_rows=4,
        decode_seconds=1.0,
        max_staleness=20,
    )
    found = simulate(flow, [10], num_steps=40 * steps_in_flight)
    assert found.mean_staleness == pytest.approx((3 * steps_in_flight - 1) / 2)
    assert found.max_staleness == 2 * steps_in_flight - 1
    assert found.slots_filled == pytest.approx(1.0)
    assert found.steps_per_hour == pytest.approx(3600 * steps_in_flight / 10)


@pytest.mark.parametrize(
    ("num_slots", "max_staleness", "learning", "period"),
    [(64, 0, 3.0, 13.0), (64, 1, 3.0, 6.5), (64, 4, 3.0, 3.0), (4, 9, 3.0, 10.0), (8, 9, 6.0, 6.0)],
)
def test_a_step_takes_as_long_as_its_bottleneck(
    num_slots: int, max_staleness: int, learning: float, period: float
) -> None:
    """The largest of: learning, rows x length / slots, and (length + learning) / (S + 1)."""
    flow = Flow(on_update="continue", batch_rows=4, num_slots=num_slots, decode_seconds=1.0, step_seconds=learning)
    found = simulate(replace(flow, max_staleness=max_staleness), [10], num_steps=80)
    assert 3600 / found.steps_per_hour == pytest.approx(period, rel=0.02)
    assert found.learning == pytest.approx(learning / period, rel=0.02)


def test_what_a_synchronous_step_adds_up_to() -> None:
    flow = Flow(
        on_update="continue",
        batch_rows=6,
        num_slots=3,
        generating=2,
        decode_seconds=0.5,
        sequence_seconds=0.1,
        prefill_seconds=0.25,
        reward_seconds=2.0,
        row_seconds=3.0,
        learning=2,
        step_seconds=1.0,
        handover_seconds=0.75,
    )
    generation = 3 * 0.25 + 10 * (0.5 + 3 * 0.1)
    found = simulate(flow, [10], num_steps=4)
    assert found.seconds == pytest.approx(4 * (generation + 2.0 + 6 * 3.0 / 2 + 1.0 + 0.75))
    assert found.generating == pytest.approx(generation / (found.seconds / 4))
    in_turn = simulate(replace(flow, in_turn=True), [10], num_steps=4)
    assert in_turn.seconds == pytest.approx(found.seconds - 4 * 0.75), "weights stay where they are"


def test_a_freed_slot_is_filled_at_once_and_fewer_sequences_decode_faster() -> None:
    flow = Flow(on_update="continue", batch_rows=3, num_slots=2, decode_seconds=0.0, sequence_seconds=1.0)
    # rows of 2 and 6 tokens share the engine until 4; the third row takes the slot: 2 s a token until 12, 1 s after it
    assert simulate(flow, [2, 6, 5], num_steps=1).seconds == pytest.approx(2 * 2 + 4 * 2 + 1)


@pytest.mark.parametrize(
    ("on_update", "seconds", "lost"), [("continue", 22, 0.0), ("wait", 25, 0.0), ("abort", 26, 1 / 25)]
)
def test_unfinished_responses_go_on_are_awaited_or_are_started_again(
    on_update: OnUpdate, seconds: float, lost: float
) -> None:
    """Rows of 2, 10, 2 and 10 tokens. At 3, version 1 is there and the second row has 7 tokens left.

    It ends at 10 or 13, and the last row starts at 11, or at 14 and again at 15, when it has one token of the 25 that
    are generated after the warm-up. With `wait`, rows start at 0, 2, 12 and 14.
    """
    flow = Flow(
        on_update="continue",
        generating=2,
        num_slots=1,
        batch_rows=1,
        decode_seconds=1.0,
        step_seconds=1.0,
        max_staleness=1,
    )
    found = simulate(replace(flow, on_update=on_update), [2, 10], num_steps=4)
    assert (found.seconds, found.max_staleness) == (seconds, 1)
    assert found.tokens_lost == pytest.approx(lost)


FLOWS = st.builds(
    Flow,
    generating=st.integers(1, 4),
    num_slots=st.integers(1, 6),
    batch_rows=st.integers(1, 8),
    decode_seconds=st.sampled_from([0.25, 1.0]),
    step_seconds=st.sampled_from([0.0, 0.5, 4.0]),
    handover_seconds=st.sampled_from([0.0, 0.5]),
    max_staleness=st.integers(0, 4),
    on_update=st.sampled_from(["continue", "wait", "abort"]),
)
PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"also on a machine that does something else"
LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=20)


@PROPERTY
@given(FLOWS, LENGTHS)
def test_no_row_is_older_than_the_bound_and_nobody_works_more_than_all_the_time(flow: Flow, lengths: list[int]) -> None:
    """ASYNC-04"""
    found = simulate(flow, lengths, num_steps=8)
    assert 0 <= found.mean_staleness <= found.max_staleness <= flow.max_staleness
    assert all(0.0 <= share <= 1.0 + 1e-9 for share in (found.generating, found.slots_filled, found.learning))
    assert found.tokens_lost == 0.0 or flow.on_update == "abort"


@PROPERTY
@given(FLOWS, LENGTHS)
def test_more_staleness_and_slots_never_slow_a_run_and_more_learning_never_speeds_it_up(
    flow: Flow, lengths: list[int]
) -> None:
    """Where a token takes the same time for any number of sequences, and no response is started again."""
    flow = replace(flow, on_update="continue", handover_seconds=0.0)
    seconds = simulate(flow, lengths, num_steps=8).seconds
    assert simulate(replace(flow, max_staleness=flow.max_staleness + 1), lengths, num_steps=8).seconds <= seconds + 1e-9
    assert simulate(replace(flow, num_slots=flow.num_slots + 1), lengths, num_steps=8).seconds <= seconds + 1e-9
    slower = replace(flow, step_seconds=flow.step_seconds + 0.5)
    assert simulate(slower, lengths, num_steps=8).seconds >= seconds - 1e-9


def test_a_simulation_without_simpy_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simpy", None)
    with pytest.raises(UsageError):
        simulate(TWO_LENGTHS, [1, 2], num_steps=4)
