"""Scores of some rows, and of several rounds."""

from __future__ import annotations

from rl_compat.rewards.types import Scores, join_scores, pick_scores

FIRST = Scores(
    rewards=(1.0, None, 0.5),
    components={"a": (1.0, None, 0.5)},
    correct=(True, None, False),
    extras={"length": (3, 4, 5)},
    weights={"a": 1.0},
    metrics={"reward/errors": 1.0, "reward/a": 0.75},
    notes=("said once",),
)
SECOND = Scores(
    rewards=(0.0,),
    components={"a": (0.0,)},
    correct=(False,),
    extras={"other": (7,)},
    weights={"a": 1.0},
    metrics={"reward/errors": 2.0, "reward/a": 0.0},
    notes=("said once", "new"),
)


def test_every_column_of_the_picked_rows_is_kept_in_their_order() -> None:
    picked = pick_scores(FIRST, [2, 0])

    assert picked.rewards == (0.5, 1.0)
    assert picked.components == {"a": (0.5, 1.0)}
    assert picked.correct == (False, True)
    assert picked.extras == {"length": (5, 3)}
    assert picked.metrics == FIRST.metrics


def test_rounds_follow_one_another_and_missing_extras_are_none() -> None:
    joined = join_scores([FIRST, SECOND])

    assert joined.rewards == (1.0, None, 0.5, 0.0)
    assert joined.components == {"a": (1.0, None, 0.5, 0.0)}
    assert joined.extras == {"length": (3, 4, 5, None), "other": (None, None, None, 7)}
    assert joined.notes == ("said once", "new")


def test_counts_add_up_and_means_are_weighed_by_rows() -> None:
    assert join_scores([FIRST, SECOND]).metrics == {"reward/errors": 3.0, "reward/a": 0.5625}


def test_one_round_is_itself() -> None:
    assert join_scores([FIRST]) is FIRST
