"""Steps that learn nothing, or from wrong numbers, are warned about once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rl_compat.batch import Sequences
from rl_compat.config.types import AlgorithmConfig
from rl_compat.objectives.experience import ExperienceSettings, make_experience
from rl_compat.rewards.types import Scores
from rl_compat.trainer.loop import Collected
from rl_compat.trainer.online.step_warnings import NEGATIVE_STEPS, StepWarnings, empty_fraction
from rl_compat.trajectory import Prompt, Trajectory

GRPO = AlgorithmConfig(name="grpo", group_size=2)


def collected(rewards: Sequence[float | None], *, texts: Sequence[str] | None = None, num_tokens: int = 3) -> Collected:
    """A step of GRPO with two responses per prompt."""
    trajectories = [
        Trajectory(
            prompt=Prompt(token_ids=(1,), text="", row=number // 2),
            group=number // 2,
            response_ids=(2,) * num_tokens,
            rollout_logprobs=(-1.0,) * num_tokens,
            finish_reason="stop",
        )
        for number in range(len(rewards))
    ]
    sequences = Sequences.from_trajectories(trajectories, texts or ["text"] * len(rewards))
    batch = sequences.batch.with_(old_logprobs=sequences.batch.rollout_logprobs)
    experience = make_experience(batch, rewards=rewards, settings=ExperienceSettings(algorithm=GRPO))
    scores = Scores(rewards=tuple(rewards), components={}, correct=(None,) * len(rewards))
    return Collected(sequences=sequences, scores=scores, experience=experience)


LEARNS = collected([0.0, 1.0, 0.5, 0.5])


def test_a_step_that_learns_has_no_warning() -> None:
    assert StepWarnings(GRPO).take_notes(1, LEARNS, {}) == []
    assert empty_fraction(LEARNS) == 0.0


@pytest.mark.parametrize(
    "step",
    [
        collected([0.0, 1.0], texts=["", " \n"], num_tokens=1),
        collected([1.0, None], num_tokens=1),
        collected([None, None]),
        collected([1.0, 1.0, 0.0, 0.0]),
    ],
    ids=["only empty responses", "one token", "no token", "equal rewards"],
)
def test_a_step_that_learns_nothing_is_warned_about_once(step: Collected) -> None:
    watch = StepWarnings(GRPO)

    notes = [watch.take_notes(number, step, {}) for number in (1, 2, 3)]

    assert [len(found) for found in notes] == [1, 0, 0]
    assert "step 1" in notes[0][0]


def test_the_kinds_of_warnings_are_independent() -> None:
    watch = StepWarnings(GRPO)

    assert len(watch.take_notes(1, collected([0.0, 0.0]), {})) == 1
    assert len(watch.take_notes(2, collected([None, None]), {})) == 1


@pytest.mark.parametrize("place", ["actor/reward_kl_penalty", "actor/kl_loss"])
def test_a_kl_that_stays_negative_is_warned_about_with_its_estimator(place: str) -> None:
    watch = StepWarnings(AlgorithmConfig(name="grpo", kl_in_reward="k1", kl_loss="k1"))

    notes = [watch.take_notes(step, LEARNS, {place: -0.02}) for step in range(1, 2 * NEGATIVE_STEPS + 1)]

    assert [step for step, found in enumerate(notes, start=1) if found] == [NEGATIVE_STEPS]
    (note,) = notes[NEGATIVE_STEPS - 1]
    assert all(word in note for word in (f"`{place}`", "`k1`", "-0.02", str(NEGATIVE_STEPS)))


def test_a_kl_that_is_negative_now_and_then_is_no_reason_to_warn() -> None:
    watch = StepWarnings(AlgorithmConfig(name="grpo", kl_in_reward="k1"))

    assert not any(
        watch.take_notes(step, LEARNS, {"actor/reward_kl_penalty": 0.1 if step % NEGATIVE_STEPS == 0 else -0.1})
        for step in range(1, 5 * NEGATIVE_STEPS)
    )


def test_empty_responses_are_counted() -> None:
    assert empty_fraction(collected([0.0] * 4, texts=["a", "", " ", "b"])) == 0.5
