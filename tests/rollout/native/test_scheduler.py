"""Who sits in which slot."""

from __future__ import annotations

from rl_compat.rollout.native.scheduler import Scheduler


def scheduler(num_prompts: int, num_slots: int, *, max_new_tokens: int = 5, group_size: int = 1) -> Scheduler:
    prompts = [[10 * (i + 1), 10 * (i + 1) + 1] for i in range(num_prompts)]
    return Scheduler(
        prompts, group_size=group_size, num_slots=num_slots, max_new_tokens=max_new_tokens, stop_token_ids=(1, 2)
    )


def step(subject: Scheduler, *tokens: int) -> None:
    subject.record([[token] for token in tokens], [[-0.5] for _ in tokens])


def test_slots_are_filled_in_the_order_of_the_prompts() -> None:
    subject = scheduler(3, 2)
    assert {slot: s.prompt for slot, s in subject.admit().items()} == {0: 0, 1: 1}
    assert [(s.next_input, s.next_position) for s in subject.running()] == [(11, 1), (21, 1)]


def test_a_recorded_token_is_the_next_input_one_position_on() -> None:
    subject = scheduler(1, 1)
    subject.admit()
    step(subject, 7)
    assert [(s.next_input, s.next_position) for s in subject.running()] == [(7, 2)]


def test_a_freed_slot_goes_to_the_next_waiting_sequence() -> None:
    subject = scheduler(3, 2)
    subject.admit()
    step(subject, 1, 7)
    assert {slot: s.prompt for slot, s in subject.admit().items()} == {0: 2}
    assert [s.prompt for s in subject.running()] == [2, 1]


def test_gaps_are_closed_from_the_end_when_nobody_waits() -> None:
    subject = scheduler(4, 4)
    subject.admit()
    step(subject, 2, 7, 1, 7)
    assert subject.admit() == {}
    assert subject.compact() == [(3, 0)]
    assert [s.prompt for s in subject.running()] == [3, 1]


def test_trailing_gaps_move_nothing() -> None:
    subject = scheduler(3, 3)
    subject.admit()
    step(subject, 7, 1, 1)
    assert subject.compact() == []
    assert [s.prompt for s in subject.running()] == [0]


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
    subject.record([[7, 2, 8]], [[-0.1, -0.2, -0.3]])
    response = subject.responses(1)[0][0]
    assert subject.done
    assert (response.token_ids, response.logprobs, response.finish_reason) == ((7, 2), (-0.1, -0.2), "stop")


def test_the_limit_ends_a_response_and_an_end_token_there_is_a_stop() -> None:
    """A-GEN-07."""
    subject = scheduler(2, 2, max_new_tokens=2)
    subject.admit()
    subject.record([[7, 8], [7, 1]], [[0.0, 0.0]] * 2)
    assert [group[0].finish_reason for group in subject.responses(2)] == ["length", "stop"]


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
    free = Scheduler([[5, 6]] * 2, group_size=1, num_slots=2, max_new_tokens=9, stop_token_ids=())
    free.admit()
    assert free.steps_at_once(most=4, most_undisturbed=64) == 9
    assert free.steps_at_once(most=4, most_undisturbed=6) == 6
    subject = scheduler(2, 2, max_new_tokens=9)
    subject.admit()
    assert subject.steps_at_once(most=4, most_undisturbed=64) == 4


def test_responses_are_grouped_by_prompt_whatever_slot_they_had() -> None:
    subject = scheduler(2, 3, max_new_tokens=1, group_size=2)
    while not subject.done:
        subject.admit()
        subject.compact()
        step(subject, *[100 + s.prompt for s in subject.running()])
    assert [[r.token_ids for r in g] for g in subject.responses(2)] == [[(100,), (100,)], [(101,), (101,)]]
