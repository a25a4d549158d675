"""A session over pools of several processes: the numbers of one process, moves between pools, and the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from fakes.processes import ended
from fakes.reward_models import save_reward_model
from fakes.runs import cpu

from rl_compat import CriticModel, ResourcePool, Session
from rl_compat.errors import ConfigError

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

SUMS = ["1+2=", "12+34=", "5+5=", "70+7="]
TRUTHS = ["3", "46", "10", "77"]


def processes(pool: ResourcePool) -> list[int]:
    hosts = pool._hosts
    assert hosts is not None
    return [host.facts.pid for host in hosts.hosts]


def scores_and_values(folder: Path, critic_pool: ResourcePool, reward_pool: ResourcePool) -> tuple[object, ...]:
    called: list[int] = []

    def length(solution_str: str) -> float:
        called.append(os.getpid())
        return float(len(solution_str))

    with Session() as session:
        actor = session.actor(
            "tiny", pool=ResourcePool(gpus=[], hardware=cpu()), max_prompt_length=16, max_new_tokens=4
        )
        critic = session.critic("tiny", pool=critic_pool, lr=1e-2)
        reward = session.reward(str(folder), length, "arithmetic", pool=reward_pool, weights=[2.0, 0.5, 1.0])
        prompts = actor.encode(SUMS, ground_truths=TRUTHS)
        sequences = actor.generate(prompts, group_size=2, seed=3).result()
        scores, values = reward.compute_rewards(sequences), critic.compute_values(sequences)
        batch = sequences.batch.with_(values=values.result(), returns=torch.ones_like(values.result()))
        critic.update(batch).result()
        learned = critic.compute_values(sequences).result()
        assert set(called) == {os.getpid()}, "functions run in this process"
        found = scores.result()
    return found.rewards, dict(found.components), learned


def test_rewards_and_values_are_those_of_one_process_and_the_processes_end_with_the_session(tmp_path: Path) -> None:
    folder = save_reward_model(tmp_path / "reward")
    pair, single = ResourcePool(gpus=[], num_processes=2), ResourcePool(gpus=[], num_processes=1)
    here = ResourcePool(gpus=[], hardware=cpu())
    rewards, components, values = scores_and_values(folder, single, pair)
    again_rewards, again_components, again_values = scores_and_values(folder, here, here)

    assert rewards == pytest.approx(again_rewards, abs=1e-5)
    assert components["python:length"] == again_components["python:length"]  # type: ignore[index]
    torch.testing.assert_close(values, again_values, rtol=1e-4, atol=1e-5)
    assert pair._hosts is None
    assert single._hosts is None


def test_a_role_moves_between_pools_with_weights_optimizer_and_version() -> None:
    here, pair = ResourcePool(gpus=[], hardware=cpu()), ResourcePool(gpus=[], num_processes=2)
    with Session() as session:
        actor = session.actor("tiny", pool=here, max_prompt_length=16, max_new_tokens=4)
        critic = session.critic("tiny", pool=here, lr=1e-2)
        sequences = actor.generate(actor.encode(SUMS), seed=3).result()
        values = critic.compute_values(sequences).result()
        batch = sequences.batch.with_(values=values, returns=torch.ones_like(values))
        stays = CriticModel.from_pretrained("tiny", pool=here, lr=1e-2, max_prompt_length=16, max_new_tokens=4)
        for model in (critic, stays):
            model.update(batch).result()
        assert critic.to(pair) is critic
        first = processes(pair)
        torch.testing.assert_close(
            critic.compute_values(sequences).result(), stays.compute_values(sequences).result(), rtol=1e-5, atol=1e-6
        )
        for model in (critic, stays):
            model.update(batch).result()
        learned = stays.compute_values(sequences).result()
        torch.testing.assert_close(critic.compute_values(sequences).result(), learned, rtol=1e-4, atol=1e-5)
        critic.to(here)
        assert all(ended(process) for process in first), "nobody else uses the pool"
        torch.testing.assert_close(critic.compute_values(sequences).result(), learned, rtol=1e-4, atol=1e-5)
        critic.close()
        with pytest.raises(ConfigError):
            critic.compute_values(sequences)
