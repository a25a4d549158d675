"""Prompts whose responses all get the same reward are replaced by the next ones of the order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest

from rl_compat.batch import Sequences
from rl_compat.config.types import AlgorithmConfig, RunConfig
from rl_compat.distributed.group import WorkerGroup
from rl_compat.rewards.types import Scores
from rl_compat.trainer.online.sampling import Sampled, prompts_of, sample
from rl_compat.trainer.phases import PhaseMemory, Phases
from rl_compat.trainer.reporter import SilentReporter, Timer
from rl_compat.trajectory import Prompt, Trajectory
from rl_compat.workers.actor import ActorModel
from rl_compat.workers.reward import EarlyScores, RewardModel, RewardWorker

NOBODY = cast("WorkerGroup[RewardWorker]", None)
"scores nothing early"
MIXED = {3, 5, 8}
"rows whose two responses get different rewards"


class Actor:
    """Answers each prompt of row n twice, with the tokens (n) and (n, n)."""

    pool = None

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.next_group = 0
        self.seeds: list[int] = []

    def generate(self, prompts: Sequence[Prompt], *, group_size: int, seed: int, **options: Any) -> Future[Sequences]:
        self.asked.append([prompt.row for prompt in prompts])
        self.seeds.append(seed)
        trajectories = [
            Trajectory(
                prompt=prompt,
                group=group,
                response_ids=(prompt.row,) * (1 + number),
                rollout_logprobs=(-1.0,) * (1 + number),
                finish_reason="stop",
            )
            for group, prompt in enumerate(prompts, start=self.next_group)
            for number in range(group_size)
        ]
        self.next_group += len(prompts)
        sequences: Future[Sequences] = Future()
        texts = [str(item.response_ids) for item in trajectories]
        sequences.set_result(Sequences.from_trajectories(trajectories, texts))
        return sequences


class Reward:
    """1 for the longer response to a prompt of MIXED, else 0; None for row 9."""

    uses_device = False
    pool = None

    def early_scores(self) -> EarlyScores:
        return EarlyScores(NOBODY)

    def compute_rewards(self, sequences: Sequences, *, early: EarlyScores | None = None) -> Future[Scores]:
        rewards = tuple(map(self._reward, sequences.trajectories))
        future: Future[Scores] = Future()
        future.set_result(
            Scores(
                rewards=rewards,
                components={"length": rewards},
                correct=tuple(None for _ in rewards),
                metrics={"reward/unscored": float(rewards.count(None)), "reward/length": 0.5},
            )
        )
        return future

    def _reward(self, item: Trajectory) -> float | None:
        row = item.prompt.row
        return None if row == 9 else float(row in MIXED and len(item.response_ids) == 2)


def prompts(rows: Sequence[int]) -> list[Prompt]:
    return [Prompt(token_ids=(1,), text="", row=row) for row in rows]


def step(first: Sequence[int], more: Callable[[int], Sequence[Prompt]], *, rounds: int | None) -> tuple[Sampled, Actor]:
    actor = Actor()
    algorithm = AlgorithmConfig(
        name="grpo", group_size=2, dynamic_sampling=rounds is not None, max_sampling_rounds=rounds or 1
    )
    memory = PhaseMemory(lambda: None, planned={})
    phases = Phases(seed=7, reporter=SilentReporter(), timer=Timer(SilentReporter()), memory=memory)
    sampled = sample(
        cast(ActorModel, actor),
        cast(RewardModel, Reward()),
        prompts(first),
        RunConfig(algorithm=algorithm),
        phases,
        more=more,
    )
    return sampled, actor


def following(start: int) -> Callable[[int], Sequence[Prompt]]:
    rows = iter(range(start, 100))
    return lambda count: prompts([next(rows) for _ in range(count)])


def test_without_rounds_every_prompt_stays() -> None:
    sampled, actor = step([0, 1, 3], following(4), rounds=None)

    assert actor.asked == [[0, 1, 3]]
    assert [prompt.row for prompt in prompts_of(sampled.sequences)] == [0, 1, 3]
    assert sampled.metrics == {}


def test_as_many_prompts_are_drawn_as_are_missing_until_all_have_a_spread() -> None:
    sampled, actor = step([0, 1, 3], following(4), rounds=5)

    assert actor.asked == [[0, 1, 3], [4, 5], [6], [7], [8]]
    assert [prompt.row for prompt in prompts_of(sampled.sequences)] == [3, 5, 8]
    assert sampled.sequences.batch.groups.tolist() == [2, 2, 4, 4, 7, 7]
    assert sampled.scores.result().rewards == (0.0, 1.0) * 3
    assert sampled.scores.result().components == {"length": (0.0, 1.0) * 3}
    assert sampled.sequences.texts == ("(3,)", "(3, 3)", "(5,)", "(5, 5)", "(8,)", "(8, 8)")


def test_every_round_has_a_seed_of_its_own() -> None:
    _, actor = step([0, 1, 3], following(4), rounds=5)

    _, again = step([0, 1, 3], following(4), rounds=5)

    assert len(set(actor.seeds)) == 5
    assert actor.seeds == again.seeds


def test_when_the_rounds_are_used_up_the_step_has_what_there_is() -> None:
    sampled, actor = step([0, 1, 3], following(4), rounds=2)

    assert actor.asked == [[0, 1, 3], [4, 5]]
    assert [prompt.row for prompt in prompts_of(sampled.sequences)] == [3, 5]


def test_no_more_prompts_are_drawn_than_are_sampled() -> None:
    drawn: list[int] = []

    def more(count: int) -> list[Prompt]:
        drawn.append(count)
        return prompts(range(10, 10 + count))

    step([0, 1, 2], more, rounds=2)

    assert drawn == [3]


def test_when_no_round_had_a_spread_the_last_one_stays() -> None:
    """A-ALG-02: it teaches nothing, and the step is still a step."""
    sampled, _ = step([0, 1], following(20), rounds=2)

    assert [prompt.row for prompt in prompts_of(sampled.sequences)] == [20, 21]
    assert sampled.metrics["training/filter_groups/kept_prompts"] == 0
    assert sampled.metrics["training/filter_groups/zero_spread_groups"] == 1.0


def test_a_prompt_without_any_score_is_replaced_too() -> None:
    sampled, _ = step([9, 3], following(5), rounds=2)

    assert [prompt.row for prompt in prompts_of(sampled.sequences)] == [3, 5]
    assert sampled.scores.result().metrics["reward/unscored"] == 2.0


def test_the_metrics_tell_all_that_was_sampled() -> None:
    sampled, _ = step([0, 1, 3], following(4), rounds=2)

    assert sampled.metrics == {
        "training/num_gen_batches": 2.0,
        "training/filter_groups/sampled_prompts": 5.0,
        "training/filter_groups/kept_prompts": 2.0,
        "training/filter_groups/zero_spread_groups": pytest.approx(3 / 5),
        "training/filter_groups/sampled_score/mean": pytest.approx(0.2),
    }
