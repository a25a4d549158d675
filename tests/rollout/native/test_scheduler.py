"""Who sits in which slot."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from rl_compat.rollout.native.scheduler import Scheduler
from rl_compat.rollout.session import PartialResponse
from rl_compat.rollout.types import SamplingParams


def partial(number: int, **params: object) -> PartialResponse:
    settings = SamplingParams(max_new_tokens=5, stop_token_ids=(1, 2))
    settings = replace(settings, **params)
    prompt = (10 * (number + 1), 10 * (number + 1) + 1)
    return PartialResponse(
        number=number, prompt_ids=prompt, params=settings, seed=0, key=number, stop=frozenset(settings.stop_token_ids)
    )


def scheduler(num_requests: int, num_slots: int, **params: object) -> Scheduler:
    made = Scheduler(deque(partial(number, **params) for number in range(num_requests)))
    made.num_slots = num_slots
    return made


def step(subject: Scheduler, *tokens: int) -> list[PartialResponse]:
    return subject.record([[token] for token in tokens], [[-0.5] for _ in tokens], version=0)


def test_slots_are_filled_in_the_order_of_the_prompts() -> None:
    subject = scheduler(3, 2)
    assert {slot: s.number for slot, s in subject.admit().items()} == {0: 0, 1: 1}
    assert [(s.last_token, s.length - 1) for s in subject.running()] == [(11, 1), (21, 1)]


def test_a_recorded_token_is_the_next_input_one_position_on() -> None:
    subject = scheduler(1, 1)
    subject.admit()
    step(subject, 7)
    assert [(s.last_token, s.length - 1) for s in subject.running()] == [(7, 2)]


def test_a_freed_slot_goes_to_the_next_waiting_sequence() -> None:
    subject = scheduler(3, 2)
    subject.admit()
    step(subject, 1, 7)
    assert {slot: s.number for slot, s in subject.admit().items()} == {0: 2}
    assert [s.number for s in subject.running()] == [2, 1]


def test_gaps_are_closed_from_the_end_when_nobody_waits() -> None:
    subject = scheduler(4, 4)
    subject.admit()
    step(subject, 2, 7, 1, 7)
    assert subject.admit() == {}
    assert subject.compact() == [(3, 0)]
    assert [s.number for s in subject.running()] == [3, 1]


def test_trailing_gaps_move_nothing() -> None:
    subject = scheduler(3, 3)
    subject.admit()
    step(subject, 7, 1, 1)
    assert subject.compact() == []
    assert [s.number for s in subject.running()] == [0]


def test_many_slots_are_refilled_several_at_a_time() -> None:
    subject = scheduler(40, 24)
    subject.admit()
    step(subject, 1, 2, *[7] * 22)
    assert subject.admit() == {}
    subject.compact()
    step(subject, 1, *[7] * 21)
    assert len(subject.admit()) == 3


def test_the_last_waiting_sequences_do_not_wait_for_more_free_slots() -> None:
    subject = scheduler(25, 24)
    subject.admit()
    step(subject, 1, *[7] * 23)
    assert len(subject.admit()) == 1


def test_tokens_after_an_end_are_dropped() -> None:
    subject = scheduler(1, 1)
    subject.admit()
    (ended,) = subject.record([[7, 2, 8]], [[-0.1, -0.2, -0.3]], version=4)
    response = ended.response()
    assert (response.token_ids, response.logprobs, response.finish_reason) == ((7, 2), (-0.1, -0.2), "stop")
    assert response.policy_versions == (4, 4)


def test_the_limit_ends_a_response_and_an_end_token_there_is_a_stop() -> None:
    """A-GEN-07."""
    subject = scheduler(2, 2, max_new_tokens=2)
    subject.admit()
    ended = subject.record([[7, 8], [7, 1]], [[0.0, 0.0]] * 2, version=0)
    assert [partial.finish_reason for partial in ended] == ["length", "stop"]


def test_evicted_responses_come_before_those_that_wait_and_keep_their_tokens() -> None:
    subject = scheduler(4, 2)
    subject.admit()
    step(subject, 7, 8)
    subject.evict()
    assert subject.running() == []
    assert {slot: s.number for slot, s in subject.admit().items()} == {0: 0, 1: 1}
    assert [s.context for s in subject.running()] == [(10, 11, 7), (20, 21, 8)]


def test_a_response_with_other_draw_settings_waits_until_the_slots_are_empty() -> None:
    waiting = deque([partial(0), partial(1, temperature=0.5), partial(2)])
    subject = Scheduler(waiting)
    subject.num_slots = 3
    assert [s.number for s in subject.admit().values()] == [0]
    assert subject.admit() == {}
    step(subject, 1)
    subject.compact()
    assert [s.number for s in subject.admit().values()] == [1]


def test_it_knows_when_other_sequences_sit_in_the_slots() -> None:
    subject = scheduler(2, 1, max_new_tokens=2)
    subject.admit()
    assert subject.take_changed()
    step(subject, 7)
    assert not subject.take_changed()
    step(subject, 7)
    assert subject.take_changed()
    subject.admit()
    assert subject.take_changed()


def test_tokens_are_looked_at_late_where_only_the_limit_ends_a_response() -> None:
    free = scheduler(2, 2, max_new_tokens=9, stop_token_ids=())
    free.admit()
    assert free.steps_at_once(most=4, most_undisturbed=64) == 9
    assert free.steps_at_once(most=4, most_undisturbed=6) == 6
    subject = scheduler(2, 2, max_new_tokens=9)
    subject.admit()
    assert subject.steps_at_once(most=4, most_undisturbed=64) == 4
