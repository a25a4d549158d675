"""The public classes on a tiny model: PPO is written with them as in examples/ppo.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.models import save_random_model
from fakes.runs import REWARD, cpu

from rl_compat import (
    ActorModel,
    AlgorithmConfig,
    CriticModel,
    ExperienceSettings,
    ReferenceModel,
    ResourcePool,
    RewardModel,
    make_experience,
)
from rl_compat.batch import Sequences
from rl_compat.errors import ConfigError, HardwareError, ModelError
from rl_compat.workers.policy import PolicyWorker

LENGTHS: dict[str, Any] = {"max_prompt_length": 16, "max_new_tokens": 8}
SUMS = ["1+2=", "12+34=", "5+5=", "70+7="]


@pytest.fixture(scope="module")
def pool() -> ResourcePool:
    return ResourcePool(gpus=[], hardware=cpu())


def generate(actor: ActorModel, **options: Any) -> Sequences:
    prompts = actor.encode(SUMS, ground_truths=["3", "46", "10", "77"])
    return actor.generate(prompts, max_new_tokens=8, **({"seed": 3} | options)).result()


def gap(logprobs: torch.Tensor, others: torch.Tensor | None, sequences: Sequences) -> float:
    assert others is not None
    return float((logprobs - others)[sequences.batch.response_mask].abs().max())


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7}, {"rollout": "transformers"}, {"lora_rank": 4, "temperature": 1.3}]
)
def test_log_probabilities_of_rollout_and_training_agree(
    options: dict[str, Any], llama_folder: Path, pool: ResourcePool
) -> None:
    """A-ALG-06"""
    actor = ActorModel.from_pretrained(str(llama_folder), pool=pool, **LENGTHS, **options)
    sequences = generate(actor, group_size=2)
    trained = actor.compute_logprobs(sequences).result()
    assert gap(trained, sequences.batch.rollout_logprobs, sequences) < 1e-4
    assert (trained[sequences.batch.response_mask] < 0).all()


@pytest.mark.parametrize("options", [{}, {"lora_rank": 4}])
def test_rollout_and_training_still_agree_after_an_update(
    options: dict[str, Any], llama_folder: Path, pool: ResourcePool
) -> None:
    actor = ActorModel.from_pretrained(str(llama_folder), pool=pool, lr=1e-2, **LENGTHS, **options)
    first = generate(actor)
    before = actor.compute_logprobs(first).result()
    actor.update(learnable(first, before)).result()

    second = generate(actor)
    assert gap(actor.compute_logprobs(second).result(), second.batch.rollout_logprobs, second) < 1e-4
    assert gap(actor.compute_logprobs(first).result(), before, first) > 1e-3
    assert {version for trajectory in first.trajectories for version in trajectory.policy_versions} == {0}
    assert {version for trajectory in second.trajectories for version in trajectory.policy_versions} == {1}


def learnable(sequences: Sequences, old_logprobs: torch.Tensor) -> Any:
    """The batch with advantages of 1 on the first half of the rows and -1 on the others."""
    signs = torch.ones(len(sequences), 1)
    signs[len(sequences) // 2 :] = -1
    mask = sequences.batch.response_mask
    return sequences.batch.with_(old_logprobs=old_logprobs, advantages=signs * mask)


def test_the_reference_of_adapters_is_the_base_before_and_after_updates(llama_folder: Path, pool: ResourcePool) -> None:
    """A-CKPT-07"""
    base = ReferenceModel.from_pretrained(str(llama_folder), pool=pool, **LENGTHS)
    actor = ActorModel.from_pretrained(str(llama_folder), pool=pool, lora_rank=4, lr=1e-2, **LENGTHS)
    reference = ReferenceModel.of_adapter(actor)
    sequences = generate(actor)
    expected = base.compute_logprobs(sequences).result()
    assert gap(reference.compute_logprobs(sequences).result(), expected, sequences) < 1e-5

    actor.update(learnable(sequences, actor.compute_logprobs(sequences).result())).result()

    assert gap(reference.compute_logprobs(sequences).result(), expected, sequences) < 1e-5
    assert gap(actor.compute_logprobs(sequences).result(), expected, sequences) > 1e-3


def test_an_update_raises_what_was_good_and_lowers_what_was_not(llama_folder: Path, pool: ResourcePool) -> None:
    actor = ActorModel.from_pretrained(str(llama_folder), pool=pool, lr=1e-3, **LENGTHS)
    sequences = generate(actor)
    before = actor.compute_logprobs(sequences).result()
    metrics = actor.update(learnable(sequences, before)).result()
    change = ((actor.compute_logprobs(sequences).result() - before) * sequences.batch.response_mask).sum(1)
    assert change[:2].sum() > 0 > change[2:].sum()
    assert metrics["actor/lr"] == 1e-3
    assert metrics["actor/pg_clipfrac"] == 0.0
    assert metrics["actor/grad_norm"] > 0


def test_the_critic_starts_at_zero_and_comes_nearer_to_the_returns(llama_folder: Path, pool: ResourcePool) -> None:
    actor = ActorModel.from_pretrained(str(llama_folder), pool=pool, **LENGTHS)
    critic = CriticModel.from_pretrained(str(llama_folder), pool=pool, lr=1e-2, clip_value=None, **LENGTHS)
    sequences = generate(actor)
    values = critic.compute_values(sequences).result()
    assert values.shape == sequences.batch.response_ids.shape
    assert values.abs().max() == 0.0
    batch = sequences.batch.with_(values=values, returns=sequences.batch.response_mask.float())
    losses = [critic.update(batch).result()["critic/vf_loss"] for _ in range(5)]
    assert losses[-1] < 0.5 * losses[0]


def test_two_steps_of_ppo_are_written_as_in_the_example(llama_folder: Path, pool: ResourcePool) -> None:
    path = str(llama_folder)
    actor = ActorModel.from_pretrained(path, pool=pool, lr=1e-3, **LENGTHS)
    critic = CriticModel.from_pretrained(path, pool=pool, lr=1e-3, **LENGTHS)
    reference = ReferenceModel.from_pretrained(path, pool=pool, **LENGTHS)
    reward = RewardModel.from_functions("arithmetic", REWARD, weights=[1.0, 0.5])
    settings = ExperienceSettings(algorithm=AlgorithmConfig(name="ppo", gae_lambda=0.95, kl_in_reward="k1"))
    kls = []
    for step in (1, 2):
        sequences = generate(actor, seed=step)
        values, scores = critic.compute_values(sequences), reward.compute_rewards(sequences)
        old, ref = actor.compute_logprobs(sequences), reference.compute_logprobs(sequences)
        batch = sequences.batch.with_(values=values.result(), old_logprobs=old.result(), ref_logprobs=ref.result())
        experience = make_experience(batch, rewards=scores.result().rewards, settings=settings, kl_coef=0.01)
        metrics = critic.update(experience.batch).result() | actor.update(experience.batch).result()
        kls.append(experience.reward_kl)
        assert {"actor/pg_loss", "critic/vf_loss"} < metrics.keys()
    reward.close()
    assert kls[0] == pytest.approx(0.0, abs=1e-6)
    assert kls[1] != 0.0


def test_a_group_is_several_responses_to_one_prompt(llama_folder: Path, pool: ResourcePool) -> None:
    """A-ALG-11: two prompts of the same text are two groups."""
    actor = ActorModel.from_pretrained(str(llama_folder), pool=pool, **LENGTHS)
    sequences = actor.generate(["1+1=", "1+1="], max_new_tokens=4, group_size=3, seed=0).result()
    assert sequences.batch.groups.tolist() == [0, 0, 0, 1, 1, 1]
    later = actor.generate(["1+1="], max_new_tokens=4, group_size=2, seed=0).result()
    assert later.batch.groups.tolist() == [2, 2]
    assert len(set(sequences.texts)) > 1
    assert sequences.texts[0] == actor.chat.decode(sequences.trajectories[0].response_ids)


def test_the_same_seed_gives_the_same_responses_and_greedy_needs_none(llama_folder: Path, pool: ResourcePool) -> None:
    actor = ActorModel.from_pretrained(str(llama_folder), pool=pool, **LENGTHS)
    assert generate(actor, seed=1).texts == generate(actor, seed=1).texts != generate(actor, seed=2).texts
    assert generate(actor, seed=1, temperature=0.0).texts == generate(actor, seed=2, temperature=0.0).texts


def test_an_option_that_does_not_exist_is_named_with_the_nearest(llama_folder: Path, pool: ResourcePool) -> None:
    with pytest.raises(ConfigError, match="`learning_rat`") as wrong:
        ActorModel.from_pretrained(str(llama_folder), pool=pool, learning_rat=1)
    assert wrong.value.hint is not None
    with pytest.raises(ConfigError, match="`max_new_token`") as near:
        CriticModel.from_pretrained(str(llama_folder), pool=pool, max_new_token=1)
    assert "`max_new_tokens`" in str(near.value.hint)
    with pytest.raises(ModelError):
        ReferenceModel.from_pretrained("smolm2-135m", pool=pool)


def test_a_pool_has_only_gpus_that_are_there(llama_folder: Path) -> None:
    with pytest.raises(HardwareError, match=r"0.*0"):
        assert ResourcePool(gpus=[0, 1], hardware=cpu()).hardware
    with pytest.raises(HardwareError, match=r"0.*0"):
        ActorModel.from_pretrained(str(llama_folder), pool=ResourcePool(gpus=[0], hardware=cpu()), **LENGTHS)
    machine = cpu()
    assert ResourcePool(hardware=replace(machine, devices=())).hardware.devices == ()


def test_what_a_model_would_have_sampled_with_is_said_once(tmp_path: Path, pool: ResourcePool) -> None:
    """A-GEN-01"""
    folder = save_random_model(
        tmp_path / "model",
        generation_config={"eos_token_id": 1, "do_sample": True, "repetition_penalty": 1.1, "top_k": 20},
    )
    actor = ActorModel.from_pretrained(str(folder), pool=pool, **LENGTHS)
    said = actor.policy.run(PolicyWorker.take_notes).result()
    assert len(said) == 1
    assert "`top_k=20`" in said[0] and "`repetition_penalty=1.1`" in said[0]
    assert actor.policy.run(PolicyWorker.take_notes).result() == []


def test_responses_end_with_a_stop_string(llama_folder: Path, pool: ResourcePool) -> None:
    free = generate(ActorModel.from_pretrained(str(llama_folder), pool=pool, **LENGTHS), temperature=0.0)
    string = free.texts[0][2:4]
    actor = ActorModel.from_pretrained(str(llama_folder), pool=pool, stop_strings=(string,), **LENGTHS)
    stopped = generate(actor, temperature=0.0)
    assert stopped.texts[0] == free.texts[0][: free.texts[0].index(string) + len(string)]
    assert stopped.trajectories[0].finish_reason == "stop"


def test_several_optimizer_steps_need_old_logprobs(llama_folder: Path, pool: ResourcePool) -> None:
    actor = ActorModel.from_pretrained(str(llama_folder), pool=pool, num_epochs=2, batch_size=4, **LENGTHS)
    batch = generate(actor).batch
    with pytest.raises(ConfigError, match="`old_logprobs`"):
        actor.update(batch.with_(advantages=torch.ones(batch.response_ids.shape))).result()
