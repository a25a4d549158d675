"""What a step does at the same time, and what it measures meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from trainer.online.test_sampling import NOBODY, Actor, prompts

from rl_compat.batch import Batch, Sequences
from rl_compat.config.types import AlgorithmConfig, RunConfig, TrainerConfig
from rl_compat.rewards.types import Scores
from rl_compat.trainer.loop import Roles, collect, learn, roll_out
from rl_compat.trainer.phases import PhaseMemory, Phases
from rl_compat.trainer.reporter import SilentReporter, Timer
from rl_compat.workers.actor import ActorModel
from rl_compat.workers.critic import CriticModel
from rl_compat.workers.reward import EarlyScores, RewardModel


class Pending(Future[Scores]):
    """Scores that must not be waited for before they are there."""

    def result(self, timeout: float | None = None) -> Scores:
        assert self.done(), "the step waits for the reward before the models have run"
        return super().result(timeout)


class Reward:
    pool = None

    def __init__(self, *, uses_device: bool) -> None:
        self.uses_device = uses_device
        self.pending: list[tuple[Pending, Scores]] = []

    def early_scores(self) -> EarlyScores:
        return EarlyScores(NOBODY)

    def compute_rewards(self, sequences: Sequences, *, early: EarlyScores | None = None) -> Future[Scores]:
        rewards = tuple(float(len(item.response_ids)) for item in sequences.trajectories)
        scores = Scores(rewards=rewards, components={}, correct=(None,) * len(rewards))
        self.pending.append((Pending(), scores))
        if self.uses_device:
            self.finish()
        return self.pending[-1][0]

    def finish(self) -> None:
        for future, scores in self.pending:
            if not future.done():
                future.set_result(scores)


class Learner(Actor):
    """Its log-probabilities take until all rewards are known."""

    def __init__(self, rewards: Sequence[Reward]) -> None:
        super().__init__()
        self._rewards = rewards

    def compute_logprobs(self, sequences: Sequences) -> Future[torch.Tensor]:
        for reward in self._rewards:
            reward.finish()
        found: Future[torch.Tensor] = Future()
        found.set_result(torch.zeros(sequences.batch.response_ids.shape))
        return found

    def take_handover_metrics(self) -> dict[str, float]:
        return {"handover/bytes": 7.0}


class Critic:
    """Every value is 0."""

    pool = None

    def compute_values(self, sequences: Sequences) -> Future[torch.Tensor]:
        found: Future[torch.Tensor] = Future()
        found.set_result(torch.zeros(sequences.batch.response_ids.shape))
        return found


class Seen(PhaseMemory):
    """Keeps the order of the phases."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self.phases.append(phase)
        yield


@pytest.mark.parametrize("uses_device", [False, True])
def test_functions_score_while_the_models_run_and_reward_models_take_their_turn(uses_device: bool) -> None:
    reward, cost = Reward(uses_device=uses_device), Reward(uses_device=False)
    actor, memory, timer = Learner([reward, cost]), Seen(), Timer(SilentReporter())
    roles = Roles(
        actor=cast(ActorModel, actor),
        reward=cast(RewardModel, reward),
        cost=cast(RewardModel, cost),
        critic=cast(CriticModel, Critic()),
        cost_critic=cast(CriticModel, Critic()),
    )
    config = RunConfig(
        algorithm=AlgorithmConfig(name="ppo_lagrangian", group_size=2),
        trainer=TrainerConfig(batch_size=2, mini_batch_size=1),
    )
    phases = Phases(seed=1, reporter=SilentReporter(), timer=timer, memory=memory)
    collected = collect(roles, roll_out(roles, prompts([1, 2]), config, phases), config, phases, kl_coef=0.0)
    assert collected.scores.rewards == (1.0, 2.0, 1.0, 2.0)
    assert collected.costs is not None
    assert collected.costs.rewards == (1.0, 2.0, 1.0, 2.0)
    assert collected.metrics == {"handover/bytes": 7.0}
    assert memory.phases == ["gen", "reward", "cost", "old_log_prob", "values", "cost_values", "reward", "cost"]
    assert timer.take().keys() == {"gen", "reward", "cost", "old_log_prob", "values", "cost_values", "adv"}


class Elsewhere:
    """A role on other devices than the actor's, which is called before the actor's own calls."""

    def __init__(self, called: list[str], name: str, pool: object) -> None:
        self.pool, self._called, self._name = pool, called, name

    def update(self, batch: Batch, *, seed: int) -> Future[dict[str, float]]:
        self._called.append(self._name)
        found: Future[dict[str, float]] = Future()
        found.set_result({f"{self._name}/seed": float(seed)})
        return found


@pytest.mark.parametrize(("apart", "order"), [(False, ["critic", "actor"]), (True, ["actor", "critic"])])
def test_a_critic_on_other_devices_learns_while_the_actor_does(apart: bool, order: list[str]) -> None:
    called: list[str] = []
    memory, timer = Seen(), Timer(SilentReporter())
    actor = Elsewhere(called, "actor", "main")
    critic = Elsewhere(called, "critic", "other" if apart else "main")
    roles = Roles(
        actor=cast(ActorModel, actor),
        reward=cast(RewardModel, Reward(uses_device=False)),
        critic=cast(CriticModel, critic),
    )
    batch = SimpleNamespace(with_=lambda **_: None, cost_values=None, cost_returns=None)
    phases = Phases(seed=3, reporter=SilentReporter(), timer=timer, memory=memory)
    metrics = learn(roles, cast(Batch, batch), phases, update_actor=True)
    assert metrics == {"critic/seed": 3.0, "actor/seed": 3.0}
    assert called == ["critic", "actor"]
    assert memory.phases == [f"update_{name}" for name in order]
