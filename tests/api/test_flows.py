"""A data flow of a program: the rollout generates while the actor learns."""

from __future__ import annotations

import pytest
from fakes.runs import cpu

from rl_compat import (
    AlgorithmConfig,
    DataFlow,
    ExperienceSettings,
    OffPolicyConfig,
    Prompt,
    ResourcePool,
    Scores,
    Sequences,
    Session,
    Stage,
    make_experience,
)
from rl_compat.distributed.local import FinishedCall
from rl_compat.errors import ConfigError

STALE = ExperienceSettings(
    algorithm=AlgorithmConfig(name="grpo", group_size=4), off_policy=OffPolicyConfig(importance="token", truncate=2.0)
)
SUMS = ["1+2=", "12+34=", "5+5=", "70+7="]


def overlap(first: FinishedCall, second: FinishedCall) -> bool:
    return max(first.start, second.start) < min(first.end, second.end)


def test_on_update_needs_a_pool_for_the_rollout_and_a_value_that_exists() -> None:
    here, other = ResourcePool(gpus=[], hardware=cpu()), ResourcePool(gpus=[], num_processes=1)
    for wrong in (
        {"on_update": "wait"},
        {"on_update": "wait", "rollout_pool": here},
        {"on_update": "go", "rollout_pool": other},
    ):
        with Session() as session, pytest.raises(ConfigError) as error:
            session.actor("tiny", pool=here, **wrong)  # type: ignore[arg-type]
        assert "on_update" in error.value.message


@pytest.mark.slow
@pytest.mark.parametrize("on_update", ["continue", "wait", None])
def test_an_own_flow_generates_while_it_learns_if_the_actor_says_what_an_update_does(on_update: str | None) -> None:
    pytest.importorskip("ray")
    here, generates = ResourcePool(gpus=[], hardware=cpu()), ResourcePool(gpus=[], num_processes=1)
    ages: list[int] = []
    calls: list[FinishedCall] = []
    with Session() as session:
        actor = session.actor(
            "tiny",
            pool=here,
            rollout_pool=generates,
            on_update=on_update,  # type: ignore[arg-type]
            lr=1e-3,
            temperature=4.0,
            max_prompt_length=16,
            max_new_tokens=48,
        )
        reward = session.reward(lambda solution_str: float(len(solution_str)), pool=here)

        def roll_out(prompts: list[Prompt]) -> tuple[Sequences, Scores]:
            sequences = actor.generate(prompts, group_size=4).result()
            return sequences, reward.compute_rewards(sequences).result()

        def learn(made: tuple[Sequences, Scores]) -> None:
            sequences, scores = made
            oldest = min(version for one in sequences.trajectories for version in one.policy_versions)
            ages.append(len(ages) - oldest)
            batch = sequences.batch.with_(old_logprobs=actor.compute_logprobs(sequences).result())
            actor.update(make_experience(batch, rewards=scores.rewards, settings=STALE).batch).result()
            actor.hand_over()

        flow = DataFlow().connect(Stage(roll_out, calls=2) >> Stage(learn), staleness=1)
        flow.run([actor.encode(SUMS)] * 6)
        calls = [call for pool in (here, generates) for _, call in pool.take_calls()]
    learned = [call for call in calls if call.name == "PolicyWorker.update"]
    generated = [call for call in calls if call.name == "RolloutWorker.generate"]
    assert (len(ages), len(learned), len(generated)) == (6, 6, 6)
    assert {call.rows for call in generated} == {16}
    assert max(ages) == 1
    at_once = sum(overlap(update, generation) for update in learned for generation in generated)
    assert at_once >= 3
