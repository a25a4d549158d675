"""Choosing by preference, with reasons."""

from __future__ import annotations

import pytest

from rl_compat.capability.choice import choose
from rl_compat.errors import HardwareError

IMPOSSIBLE = {"gold": ("there is none",)}
UNWISE = {"silver": ("it tarnishes",)}


def pick(asked: str | None = None, candidates: tuple[str, ...] = ("gold", "silver", "tin", "lead")):
    return choose(
        "plan.metal",
        candidates,
        because="it is cheap",
        against=lambda value: IMPOSSIBLE.get(value, ()),
        unwise=lambda value: UNWISE.get(value, ()),
        asked=asked,
    )


def test_the_first_value_with_nothing_against_it_is_picked_and_all_others_get_a_reason() -> None:
    choice = pick()

    assert (choice.value, choice.reason, choice.asked) == ("tin", "it is cheap", False)
    assert {item.value: item.reasons for item in choice.rejected} == {
        "gold": ("there is none",),
        "silver": ("it tarnishes",),
        "lead": ("`tin` is preferred",),
    }


def test_what_is_asked_for_beats_the_preferences_and_keeps_the_doubts() -> None:
    choice = pick(asked="silver")

    assert (choice.value, choice.reason.endswith("it tarnishes"), choice.asked) == ("silver", True, True)


def test_an_impossible_request_is_refused_by_name_with_a_way_out() -> None:
    with pytest.raises(HardwareError) as caught:
        pick(asked="gold")

    assert caught.value.message == "`plan.metal=gold` there is none"
    assert caught.value.hint == "set `plan.metal=tin`", "silver would work, but there is a doubt about it"


def test_when_nothing_works_every_reason_is_given() -> None:
    with pytest.raises(HardwareError, match="`gold`"):
        pick(candidates=("gold",))
