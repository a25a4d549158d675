"""Wrong arguments of the calls of a program: each is refused by its name, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import pytest
import torch
from fakes.runs import cpu

from rl_compat import (
    ActorModel,
    AlgorithmConfig,
    ExperienceSettings,
    OffPolicyConfig,
    ResourcePool,
    RewardModel,
    Sequences,
    Session,
    make_experience,
)
from rl_compat.errors import ConfigError


class Program(NamedTuple):
    actor: ActorModel
    sequences: Sequences


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    pool = ResourcePool(gpus=[], hardware=cpu())
    actor = ActorModel.from_pretrained("tiny", pool=pool, max_prompt_length=16, max_new_tokens=4, batch_size=2)
    yield Program(actor, actor.generate(["1+2=", "5+5="], group_size=2, seed=3).result())
    actor.close()


def settings(name: Any = "grpo", **off_policy: Any) -> ExperienceSettings:
    return ExperienceSettings(algorithm=AlgorithmConfig(name=name), off_policy=OffPolicyConfig(**off_policy))


def experience(program: Program, chosen: ExperienceSettings | None = None, **changes: Any) -> Any:
    arguments: dict[str, Any] = {"rewards": [1.0, 0.0, None, 1.0], "settings": chosen or settings()}
    return make_experience(changes.pop("batch", program.sequences.batch), **(arguments | changes))


CALLS: dict[str, tuple[str, Callable[[Program], Any]]] = {
    "a pool that is a name": ("pool", lambda it: it.actor.to("cpu")),  # type: ignore[arg-type]
    "a pool of a number": ("gpus", lambda it: ResourcePool(gpus=0)),  # type: ignore[arg-type]
    "one prompt without a list": ("prompts", lambda it: it.actor.generate("1+2=")),
    "a prompt that is a number": ("prompts", lambda it: it.actor.generate([3])),  # type: ignore[list-item]
    "a seed that is a text": ("seed", lambda it: it.actor.generate(["1"], seed="x")),  # type: ignore[arg-type]
    "sampling of another type": ("sampling", lambda it: it.actor.generate(["1"], sampling=3)),  # type: ignore[arg-type]
    "too many truths": ("ground_truths", lambda it: it.actor.encode(["1"], ground_truths=["1", "2"])),
    "a batch for sequences": ("sequences", lambda it: it.actor.compute_logprobs(it.sequences.batch)),  # type: ignore[arg-type]
    "no sequences": ("sequences", lambda it: RewardModel.from_functions("gsm8k").compute_rewards([1])),  # type: ignore[arg-type]
    "an update of an experience": ("batch", lambda it: it.actor.update(experience(it))),
    "an update without advantages": ("advantages", lambda it: it.actor.update(it.sequences.batch)),
    "a field that does not exist": ("advantages", lambda it: it.sequences.batch.with_(advantage=torch.zeros(4, 4))),
    "a field of another shape": ("values", lambda it: it.sequences.batch.with_(values=torch.zeros(1, 1))),
    "a future as a field": ("values", lambda it: it.sequences.batch.with_(values=Future())),
    "rewards of another length": ("rewards", lambda it: experience(it, rewards=[1.0])),
    "a reward that is a text": ("rewards[1]", lambda it: experience(it, rewards=[1.0, "a", 0.0, 0.0])),
    "a reward that is not finite": ("rewards[0]", lambda it: experience(it, rewards=[float("nan"), 0, 0, 0])),
    "sequences for a batch": ("batch", lambda it: experience(it, batch=it.sequences)),
    "settings of another type": ("settings", lambda it: experience(it, AlgorithmConfig())),  # type: ignore[arg-type]
    "an unknown algorithm": ("algorithm.name", lambda it: settings("gpro")),
    "PPO without values": ("values", lambda it: experience(it, settings("ppo"))),
    "ReMax without a baseline": ("greedy_rewards", lambda it: experience(it, settings("remax"))),
    "GDPO without parts": ("parts", lambda it: experience(it, settings("gdpo"))),
    "an optimal baseline without log-probabilities": (
        "old_logprobs",
        lambda it: experience(it, settings("optimal_token_baseline")),
    ),
    "a correction without log-probabilities": (
        "old_logprobs",
        lambda it: experience(it, settings(importance="token")),
    ),
    "costs that nothing reads": ("costs", lambda it: experience(it, costs=[0.0] * 4)),
    "an algorithm on offline data": ("dpo", lambda it: experience(it, settings("dpo"))),
    "a folder that is a number": ("path", lambda it: it.actor.save_pretrained(3)),  # type: ignore[arg-type]
    "a learning rate that is a text": ("lr", lambda it: ActorModel.from_pretrained("tiny", lr="x")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", CALLS)
def test_a_wrong_argument_is_refused_by_its_name(program: Program, case: str) -> None:
    name, call = CALLS[case]
    with pytest.raises(ConfigError) as error:
        call(program)
    assert f"`{name}`" in error.value.message + (error.value.hint or "")


def test_a_session_sets_the_planned_threads() -> None:
    before = torch.get_num_threads()
    try:
        with Session() as session:
            session.actor("tiny", pool=ResourcePool(gpus=[], hardware=cpu()), max_prompt_length=16, max_new_tokens=4)
            planned = session.plan.pool_of("actor").num_threads
            assert planned is not None
            assert torch.get_num_threads() == planned
    finally:
        torch.set_num_threads(before)
