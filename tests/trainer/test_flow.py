"""Stages run in start order, within the bound, and end together."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_compat.distributed.group import CallsStopped, PendingCall, calls_until
from rl_compat.errors import ConfigError
from rl_compat.trainer.flow import Buffer, DataFlow, Stage, ahead

PROPERTY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"also on a machine that does something else"


class Finished:
    """The number of items that the last stage has finished: the version that a rollout would see."""

    def __init__(self) -> None:
        self.version = 0
        self.ages: list[int] = []

    def roll_out(self, item: int) -> tuple[int, int]:
        return item, self.version

    def learn(self, made: tuple[int, int]) -> None:
        assert made[0] == self.version, "items keep their order"
        self.ages.append(self.version - made[1])
        self.version += 1


def test_with_staleness_0_the_stages_take_turns() -> None:
    seen: list[str] = []
    rollout = Stage(lambda item: seen.append(f"rollout {item}") or item)
    flow = DataFlow().connect(rollout >> Stage(lambda item: seen.append(f"learner {item}")))
    flow.run(range(3))
    assert seen == [f"{stage} {item}" for item in range(3) for stage in ("rollout", "learner")]


@pytest.mark.parametrize("staleness", [0, 1, 4])
@pytest.mark.parametrize("calls", [1, 3])
def test_the_bound_is_never_exceeded_and_nothing_is_lost(staleness: int, calls: int) -> None:
    progress = Finished()
    rollout, learner = Stage(progress.roll_out, calls=calls), Stage(progress.learn)
    DataFlow().connect(rollout >> Stage(lambda made: made) >> learner, staleness=staleness).run(range(60))
    assert progress.version == 60
    assert max(progress.ages) <= staleness


@PROPERTY
@given(st.integers(0, 6), st.integers(1, 4), st.lists(st.integers(0, 2), min_size=1, max_size=30))
def test_in_no_schedule_is_an_item_too_old_or_lost_or_made_long_before_it_is_used(
    staleness: int, calls: int, pauses: list[int]
) -> None:
    """ASYNC-04, ASYNC-05 and ASYNC-08: rollout and learner take 0 to 2 ms for an item, in any order."""
    progress, started, most_waiting = Finished(), 0, 0
    lock = threading.Lock()

    def roll_out(item: int) -> tuple[int, int]:
        nonlocal started, most_waiting
        with lock:
            started += 1
            most_waiting = max(most_waiting, started - progress.version)
        made = progress.roll_out(item)
        time.sleep(pauses[item] / 1000)
        return made

    def learn(made: tuple[int, int]) -> None:
        time.sleep(pauses[-1 - made[0]] / 1000)
        progress.learn(made)

    rollout = Stage(roll_out, calls=calls)
    DataFlow().connect(rollout >> Stage(learn), staleness=staleness).run(range(len(pauses)))
    assert progress.version == started == len(pauses)
    assert max(progress.ages) <= staleness
    assert most_waiting <= staleness + 1


@pytest.mark.parametrize("staleness", [0, 1, 10])
def test_an_item_at_the_bound_is_learned_from(staleness: int) -> None:
    """ASYNC-04: the bound itself is allowed, and not one more."""
    progress, all_started = Finished(), threading.Event()

    def roll_out(item: int) -> tuple[int, int]:
        made = progress.roll_out(item)
        if item == staleness:
            all_started.set()
        return made

    def learn(made: tuple[int, int]) -> None:
        assert all_started.wait(10)
        progress.learn(made)

    DataFlow().connect(Stage(roll_out) >> Stage(learn), staleness=staleness).run(range(staleness + 1))
    assert progress.ages == list(range(staleness + 1))


def test_a_producer_waits_for_a_learner_that_pauses_and_nothing_is_dropped() -> None:
    """ASYNC-08: rollouts that take no time, two steps ahead of a learner that pauses in its tenth step."""
    progress, most_waiting, made = Finished(), 0, 0

    def roll_out(item: int) -> tuple[int, int]:
        nonlocal made
        made += 1
        return progress.roll_out(item)

    def learn(item: tuple[int, int]) -> None:
        nonlocal most_waiting
        if progress.version == 10:
            time.sleep(0.05)
        most_waiting = max(most_waiting, made - progress.version)
        progress.learn(item)

    DataFlow().connect(Stage(roll_out) >> Stage(learn), staleness=2).run(range(1000))
    assert (made, progress.version) == (1000, 1000)
    assert most_waiting <= 3
    assert max(progress.ages) <= 2


def test_an_item_starts_as_soon_as_the_bound_allows_it_and_not_before() -> None:
    """With 1, items 0 and 1 start at once, and item 2 when the learner asks for item 1."""
    started = [threading.Event() for _ in range(4)]

    def learn(item: int) -> None:
        assert item == 3 or started[item + 1].wait(10)
        assert not any(later.is_set() for later in started[item + 2 :])

    rollout = Stage(lambda item: started[item].set() or item)
    DataFlow().connect(rollout >> Stage(learn), staleness=1).run(range(4))


def test_calls_of_one_stage_run_at_the_same_time_and_their_results_keep_their_order() -> None:
    """The first item ends last."""
    second_is_there, order = threading.Event(), []

    def roll_out(item: int) -> int:
        if item == 0:
            assert second_is_there.wait(10)
        second_is_there.set()
        return item

    DataFlow().connect(Stage(roll_out, calls=2) >> Stage(order.append), staleness=1).run(range(2))
    assert order == [0, 1]


@pytest.mark.parametrize("where", ["source", "rollout", "middle", "learner", "goes_on"])
@pytest.mark.parametrize("staleness", [0, 2])
def test_an_error_anywhere_stops_all_stages_and_is_raised_once(where: str, staleness: int) -> None:
    error = ValueError(where)

    def fails(place: str) -> Callable[[int], int]:
        def function(item: int) -> int:
            if place == where and item == 3:
                raise error
            return item

        return function

    def source() -> Iterator[int]:
        yield from map(fails("source"), range(9))

    asked = iter(range(9))
    line = Stage(fails("rollout")) >> Stage(fails("middle")) >> Stage(fails("learner"))
    before = threading.active_count()
    with pytest.raises(ValueError) as raised:
        DataFlow().connect(line, staleness=staleness).run(
            source(), goes_on=lambda: fails("goes_on")(next(asked)) is not None
        )
    assert raised.value is error
    assert threading.active_count() == before


Loads = list[list[float]]


@settings(max_examples=40, deadline=None)
@given(
    loads=st.lists(st.lists(st.floats(0.05, 1.5), max_size=4), max_size=12),
    staleness=st.integers(1, 3),
    calls=st.integers(1, 3),
)
def test_a_buffer_divides_what_it_gets_into_steps_by_load(loads: Loads, staleness: int, calls: int) -> None:
    """Each part once and in order; a step is fuller than 1 only where a part would be too old at the next one."""
    steps: list[list[tuple[int, int, float]]] = []

    def roll_out(number: int) -> list[tuple[int, int, float]]:
        return [(number, len(steps), load) for load in loads[number]]

    line = Stage(roll_out, calls=calls) >> Buffer(load=lambda part: part[2]) >> Stage(steps.append)
    DataFlow().connect(line, staleness=staleness).run(range(len(loads)))
    parts = [(number, load) for number, own in enumerate(loads) for load in own]
    assert [(number, load) for step in steps for number, _, load in step] == parts
    for version, step in enumerate(steps):
        assert all(version - started <= staleness for _, started, _ in step)
        before = sum(load for *_, load in step[:-1])
        assert before <= 1 + 1e-6 or version - step[-1][1] == staleness or len(step) == 1


def test_a_step_waits_until_it_is_full_and_no_longer() -> None:
    """Five parts of 0.4: two fit into a step, and the last one is what is left."""
    steps: list[list[float]] = []
    line = Stage(lambda load: [load]) >> Buffer(load=lambda load: load) >> Stage(steps.append)
    DataFlow().connect(line, staleness=1).run([0.4] * 5)
    assert steps == [[0.4, 0.4], [0.4, 0.4], [0.4]]


def test_a_buffer_that_drops_gives_the_newest_items_that_are_made_and_tells_the_others() -> None:
    """The first step lasts until item 5 has started: 0 is learned from, and those before 4 make way."""
    started = [threading.Event() for _ in range(9)]
    done: list[int] = []
    dropped: list[list[int]] = []
    flow = DataFlow()

    def roll_out(item: int) -> list[int]:
        started[item].set()
        return [item]

    def learn(items: list[int]) -> None:
        done.extend(items)
        dropped.append(list(flow.dropped))
        if not items[0]:
            assert started[5].wait(10)
            flow.drain()

    flow.connect(Stage(roll_out) >> Buffer(drops=True) >> Stage(learn), staleness=2).run(range(9))
    assert sorted([*done, *(item for items in dropped for item in items)]) == list(range(done[-1] + 1))
    assert done[0] == 0 and done[1] >= 4
    assert dropped[:2] == [[], list(range(1, done[1]))]


def test_a_buffer_that_waits_drops_nothing_however_long_a_step_lasts() -> None:
    done: list[list[int]] = []
    flow = DataFlow()
    line = Stage(lambda item: [item]) >> Buffer[int]() >> Stage(lambda items: done.append([*items, *flow.dropped]))
    flow.connect(line, staleness=2).run(range(6))
    assert done == [[item] for item in range(6)]


def test_a_signal_ends_the_call_that_another_stage_waits_for() -> None:
    interrupted = threading.Event()
    waits = threading.Event()

    def roll_out(item: int) -> None:
        call: PendingCall[None] = PendingCall(interrupted.set)
        waits.set()
        call.result()

    def kill() -> None:
        waits.wait()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=kill).start()
    with pytest.raises(KeyboardInterrupt):
        DataFlow().connect(Stage(roll_out) >> Stage(lambda item: None)).run(range(2))
    assert interrupted.is_set()


@pytest.mark.parametrize("method", ["stop", "drain"])
def test_stop_drops_what_has_started_and_drain_does_not(method: str) -> None:
    done: list[int] = []
    all_started = threading.Event()
    flow = DataFlow()

    def roll_out(item: int) -> int:
        if item == 2:
            all_started.set()
        return item

    def learn(item: int) -> None:
        assert all_started.wait(10)
        done.append(item)
        if item == 0:
            getattr(flow, method)()

    flow.connect(Stage(roll_out) >> Stage(learn), staleness=2).run(range(9))
    assert done == ([0] if method == "stop" else [0, 1, 2])


def test_a_paused_flow_starts_nothing_until_it_is_resumed() -> None:
    started: list[int] = []
    flow = DataFlow()
    flow.pause()
    threading.Timer(0.05, lambda: (started.append(-1), flow.resume())).start()
    flow.connect(Stage(lambda item: started.append(item)) >> Stage(lambda item: None)).run(range(2))
    assert started == [-1, 0, 1]


def test_the_stages_end_with_the_source_or_when_the_caller_wants_no_more() -> None:
    done: list[int] = []
    flow = DataFlow().connect(Stage(lambda item: item) >> Stage(done.append), staleness=1)
    flow.run([])
    flow.run(range(9), goes_on=lambda: len(done) < 3)
    assert done == [0, 1, 2]
    assert flow.wait_seconds > 0


def test_a_stage_works_with_the_threads_of_torch_that_its_caller_has() -> None:
    seen: list[int] = []
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        DataFlow().connect(Stage(lambda item: torch.get_num_threads()) >> Stage(seen.append)).run(range(1))
    finally:
        torch.set_num_threads(before)
    assert seen == [before + 1]


def test_values_that_make_no_sense_are_refused() -> None:
    stage = Stage(abs)
    for wrong in (
        lambda: Stage(abs, calls=0),
        lambda: DataFlow().connect(stage, staleness=-1),
        lambda: DataFlow().run([]),
        lambda: stage >> abs,
        lambda: DataFlow().connect(stage >> Buffer()),
        lambda: DataFlow().connect(stage >> Buffer() >> stage >> stage),
    ):
        with pytest.raises(ConfigError):
            wrong()


def test_a_future_that_is_there_is_returned_even_after_the_stop() -> None:
    stop: Future[None] = Future()
    stop.set_exception(CallsStopped())
    call: PendingCall[int] = PendingCall(lambda: None)
    with calls_until(stop):
        with pytest.raises(CallsStopped):
            call.result()
        call.set_result(3)
        assert call.result() == 3


def test_the_next_item_may_start_while_the_last_stage_is_busy_with_what_does_not_concern_it() -> None:
    started = [threading.Event() for _ in range(3)]

    def learn(item: int) -> None:
        assert not started[item + 1].is_set() if item < 2 else True
        flow.advance()
        assert started[item + 1].wait(10) if item < 2 else True
        assert not started[2].is_set() or item > 0

    flow = DataFlow().connect(Stage(lambda item: started[item].set() or item) >> Stage(learn))
    flow.run(range(3))


def test_items_are_made_while_the_one_before_is_in_use_and_keep_their_order() -> None:
    made = [threading.Event() for _ in range(3)]

    def items() -> Iterator[int]:
        for number, event in enumerate(made):
            event.set()
            yield number
        raise ZeroDivisionError

    seen = []
    with pytest.raises(ZeroDivisionError):
        for item in ahead(items()):
            assert item == 2 or made[item + 1].wait(10)
            seen.append(item)
    assert seen == [0, 1, 2]
