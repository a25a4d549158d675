"""Several roles under one plan: shared options, pools, moves, saving and closing."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.machines import recorded
from fakes.runs import cpu
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

from rl_compat import (
    ActorModel,
    AlgorithmConfig,
    CriticModel,
    ExperienceSettings,
    ResourcePool,
    RewardModel,
    SamplingParams,
    Sequences,
    Session,
    make_experience,
)
from rl_compat.errors import ConfigError, HardwareError, ModelError

LENGTHS: dict[str, Any] = {"max_prompt_length": 16, "max_new_tokens": 4}
SUMS = ["1+2=", "12+34=", "5+5=", "70+7="]
SETTINGS = ExperienceSettings(algorithm=AlgorithmConfig(name="ppo", kl_in_reward="k1"))


def pool() -> ResourcePool:
    return ResourcePool(gpus=[], hardware=cpu())


def draw(actor: ActorModel, **options: Any) -> Sequences:
    prompts = actor.encode(SUMS, ground_truths=["3", "46", "10", "77"])
    return actor.generate(prompts, **({"seed": 3} | options)).result()


def signed(sequences: Sequences, actor: ActorModel) -> Any:
    """A batch with advantages of 1 and -1 in turn."""
    signs = torch.tensor([1.0, -1.0]).repeat(len(sequences) // 2)[:, None]
    old = actor.compute_logprobs(sequences).result()
    return sequences.batch.with_(old_logprobs=old, advantages=signs * sequences.batch.response_mask)


def test_all_roles_are_planned_together_and_a_step_of_ppo_runs(llama_folder: Path) -> None:
    path = str(llama_folder)
    with Session() as session:
        actor = session.actor(path, pool=pool(), lr=1e-3, **LENGTHS)
        critic = session.critic(path, pool=pool(), lr=1e-2)
        reference = session.reference(path, pool=pool())
        reward = session.reward(lambda solution_str: float(len(solution_str)), "arithmetic", weights=[0.5, 1.0])
        assert list(session.plan.pools) == ["cpu"]
        assert list(session.plan.roles) == ["actor", "critic", "reference"]

        sequences = draw(actor)
        values, scores = critic.compute_values(sequences), reward.compute_rewards(sequences)
        old, ref = actor.compute_logprobs(sequences), reference.compute_logprobs(sequences)
        batch = sequences.batch.with_(values=values.result(), old_logprobs=old.result(), ref_logprobs=ref.result())
        experience = make_experience(batch, rewards=scores.result().rewards, settings=SETTINGS, kl_coef=0.01)
        metrics = critic.update(experience.batch).result() | actor.update(experience.batch).result()

    assert {"actor/pg_loss", "critic/vf_loss"} < metrics.keys()
    assert set(scores.result().weights.values()) == {0.5, 1.0}
    assert sequences.batch.response_ids.shape[1] <= LENGTHS["max_new_tokens"]


def test_options_that_are_not_given_follow_the_actor(llama_folder: Path) -> None:
    with Session() as session:
        critic = session.critic(str(llama_folder), pool=pool(), lr=0.5, num_epochs=3)
        actor = session.actor(
            str(llama_folder), pool=pool(), lr=0.25, temperature=0.7, num_epochs=2, batch_size=8, **LENGTHS
        )
        reference = session.reference(str(llama_folder), pool=pool())

        assert (actor.settings.policy.optimizer.lr, critic.settings.optimizer.lr) == (0.25, 0.5)
        assert (actor.settings.policy.num_epochs, critic.settings.num_epochs) == (2, 3)
        assert critic.settings.mini_batch_size == 8
        assert reference.settings.temperature == 0.7


def test_a_role_cannot_be_added_once_the_session_is_planned(llama_folder: Path) -> None:
    with Session() as session:
        actor = session.actor(str(llama_folder), pool=pool(), **LENGTHS)
        with pytest.raises(ConfigError, match="actor"):
            session.actor(str(llama_folder), pool=pool())
        draw(actor)
        with pytest.raises(ConfigError, match="critic"):
            session.critic(str(llama_folder), pool=pool())


def test_a_closed_session_frees_its_workers_and_refuses_calls(llama_folder: Path) -> None:
    with Session() as session:
        actor = session.actor(str(llama_folder), pool=pool(), **LENGTHS)
        sequences = draw(actor)
        alive = weakref.ref(actor.policy._handles[0]._worker)  # type: ignore[attr-defined]
    gc.collect()

    assert alive() is None
    for call in (lambda: actor.compute_logprobs(sequences), lambda: session.plan, lambda: session.reward("arithmetic")):
        with pytest.raises(ConfigError):
            call()


def test_pools_of_different_devices_are_pools_of_the_plan(llama_folder: Path) -> None:
    one = recorded("h200")
    machine = replace(one, devices=tuple(replace(one.devices[0], index=index) for index in (0, 1)))
    with Session() as session:
        session.actor(str(llama_folder), pool=ResourcePool(gpus=[0], hardware=machine), **LENGTHS)
        session.critic(str(llama_folder), pool=ResourcePool(gpus=[1], hardware=machine))
        session.reference(str(llama_folder), pool=ResourcePool(gpus=[1], hardware=machine))
        plan = session.plan

    assert {name: pool.devices for name, pool in plan.pools.items()} == {"gpu0": ("cuda:0",), "gpu1": ("cuda:1",)}
    assert {role: placed.device for role, placed in plan.roles.items()} == {
        "actor": "cuda:0",
        "critic": "cuda:1",
        "reference": "cuda:1",
    }
    with pytest.raises(HardwareError, match="5"):
        _ = ResourcePool(gpus=[0, 5], hardware=machine).hardware


def test_pools_of_different_nodes_are_planned_for_the_cards_of_their_nodes(llama_folder: Path) -> None:
    path = str(llama_folder)

    def on(node: str, card: str) -> ResourcePool:
        return ResourcePool(gpus=[0], address="10.0.0.1:6379", nodes=[node], hardware=recorded(card))

    with Session() as session:
        session.actor(path, pool=on("10.0.0.1", "h100"), **LENGTHS)
        session.reference(path, pool=on("10.0.0.2", "p40"))
        plan = session.plan
        assert [pool.device_name for pool in plan.pools.values()] == ["NVIDIA H100 80GB HBM3", "Tesla P40"]
        assert plan.roles["actor"].compute_dtype == "bf16"
        assert plan.roles["reference"].compute_dtype == "fp32"


def test_under_adapters_the_reference_is_the_base_of_the_actor(llama_folder: Path) -> None:
    with Session() as session:
        actor = session.actor(str(llama_folder), pool=pool(), lora_rank=4, lr=1e-2, **LENGTHS)
        reference = session.reference(str(llama_folder), pool=pool())
        assert list(session.plan.roles) == ["actor"]
        sequences = draw(actor)
        before = reference.compute_logprobs(sequences).result()
        actor.update(signed(sequences, actor)).result()

        torch.testing.assert_close(reference.compute_logprobs(sequences).result(), before)
        assert (actor.compute_logprobs(sequences).result() - before).abs().max() > 1e-3


def test_roles_that_learn_share_the_optimizer(llama_folder: Path) -> None:
    with Session() as session:
        session.actor(str(llama_folder), pool=pool(), **LENGTHS)
        session.critic(str(llama_folder), pool=pool(), optimizer="adamw8bit")
        with pytest.raises(ConfigError, match="optimizer"):
            _ = session.plan


def test_a_move_keeps_weights_optimizer_and_version(llama_folder: Path) -> None:
    """The workers are replaced although the device is the same."""

    def updated(*, moves: bool) -> torch.Tensor:
        actor = ActorModel.from_pretrained(str(llama_folder), pool=pool(), lr=1e-2, **LENGTHS)
        sequences = draw(actor)
        for seed in (1, 2):
            actor.update(signed(sequences, actor), seed=seed).result()
            if moves:
                actor._restart()
        assert draw(actor).batch.policy_versions[0, 0] == 2
        return actor.compute_logprobs(sequences).result()

    torch.testing.assert_close(updated(moves=True), updated(moves=False), rtol=0, atol=0)


def test_a_move_to_a_device_that_is_not_there_changes_nothing(llama_folder: Path) -> None:
    actor = ActorModel.from_pretrained(str(llama_folder), pool=pool(), **LENGTHS)
    first = draw(actor)
    with pytest.raises(HardwareError):
        actor.to(ResourcePool(gpus=[3], hardware=cpu()))

    assert actor.to(pool()) is actor
    assert draw(actor).texts == first.texts


def test_saved_actors_and_critics_load_as_they_were(llama_folder: Path, tmp_path: Path) -> None:
    actor = ActorModel.from_pretrained(str(llama_folder), pool=pool(), lr=1e-2, lora_rank=4, **LENGTHS)
    critic = CriticModel.from_pretrained(str(llama_folder), pool=pool(), lr=1e-2, **LENGTHS)
    sequences = draw(actor)
    actor.update(signed(sequences, actor)).result()
    values = critic.compute_values(sequences).result()
    critic.update(sequences.batch.with_(values=values, returns=torch.ones_like(values))).result()

    same = ActorModel.from_pretrained(str(actor.save_pretrained(tmp_path / "actor")), pool=pool(), **LENGTHS)
    torch.testing.assert_close(
        same.compute_logprobs(sequences).result(), actor.compute_logprobs(sequences).result(), rtol=1e-4, atol=1e-4
    )
    again = CriticModel.from_pretrained(str(critic.save_pretrained(tmp_path / "critic")), pool=pool(), **LENGTHS)
    learned = critic.compute_values(sequences).result()
    assert learned.abs().max() > 0
    torch.testing.assert_close(again.compute_values(sequences).result(), learned, rtol=1e-4, atol=1e-4)


def test_a_reward_is_replaced_between_steps_by_functions_and_models(llama_folder: Path, tmp_path: Path) -> None:
    folders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        config = AutoConfig.from_pretrained(llama_folder, num_labels=1)
        folder = tmp_path / f"reward_{seed}"
        AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
        AutoTokenizer.from_pretrained(llama_folder).save_pretrained(folder)
        folders.append(str(folder))
    with Session() as session:
        actor = session.actor(str(llama_folder), pool=pool(), **LENGTHS)
        reward = session.reward(folders[0], "arithmetic", pool=pool(), weights=[2.0, 0.5])
        sequences = draw(actor)
        first = reward.compute_rewards(sequences).result()
        assert dict(first.weights) == {"arithmetic": 0.5, "model": 2.0}
        reward.replace(model=folders[1])
        second = reward.compute_rewards(sequences).result()
        assert second.components["model"] != first.components["model"]
        reward.replace(functions=[lambda solution_str: 1.0])
        third = reward.compute_rewards(sequences).result()
        assert third.components["model"] == second.components["model"]
        assert 1.0 in {value for name, values in third.components.items() if name != "model" for value in values}


def test_a_python_function_is_a_reward() -> None:
    def length(solution_str: str) -> float:
        return float(len(solution_str))

    reward = RewardModel.from_functions(length, "arithmetic", weights=[0.1, 1.0])
    assert reward.config.functions == ("python:length", "arithmetic")
    reward.close()
    with pytest.raises(ConfigError):
        reward.replace(functions=["arithmetic"])


def test_sampling_settings_come_as_one_object_or_one_by_one(llama_folder: Path) -> None:
    actor = ActorModel.from_pretrained(str(llama_folder), pool=pool(), **LENGTHS)
    params = SamplingParams(max_new_tokens=4, temperature=0.5, top_k=3, seed=3)
    assert draw(actor, seed=None, sampling=params).texts == draw(actor, temperature=0.5, top_k=3).texts
    with pytest.raises(ConfigError, match="`sampling`"):
        draw(actor, sampling=params)


def test_a_batch_without_what_an_update_needs_is_refused(llama_folder: Path) -> None:
    actor = ActorModel.from_pretrained(str(llama_folder), pool=pool(), kl_loss="k3", **LENGTHS)
    sequences = draw(actor)
    with pytest.raises(ConfigError, match="`advantages`"):
        actor.update(sequences.batch)
    with pytest.raises(ConfigError, match="`ref_logprobs`"):
        actor.update(signed(sequences, actor))


def test_a_reference_with_a_smaller_vocabulary_is_refused(llama_folder: Path, tmp_path: Path) -> None:
    small = LlamaConfig(
        vocab_size=8, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0
    )
    LlamaForCausalLM(small).save_pretrained(tmp_path / "small")
    with Session() as session:
        session.actor(str(llama_folder), pool=pool(), **LENGTHS)
        session.reference(str(tmp_path / "small"), pool=pool())
        with pytest.raises(ModelError) as caught:
            _ = session.plan
    assert "8" in caught.value.message.split()


@pytest.mark.parametrize("role", ["critic", "reference"])
def test_a_role_with_another_tokenizer_is_refused(role: str, llama_folder: Path) -> None:
    """The built-in model has more words than the random one, and others."""
    with Session() as session:
        session.actor(str(llama_folder), pool=pool(), **LENGTHS)
        getattr(session, role)("tiny", pool=pool())
        with pytest.raises(ModelError, match=role):
            _ = session.plan


@pytest.mark.parametrize("ranks", [(4, 0), (0, 4), (4, 2)])
def test_actor_and_critic_may_train_different_adapters(ranks: tuple[int, int], llama_folder: Path) -> None:
    with Session() as session:
        actor = session.actor(str(llama_folder), pool=pool(), lora_rank=ranks[0], **LENGTHS)
        critic = session.critic(str(llama_folder), pool=pool(), lora_rank=ranks[1])
        lora = actor.settings.policy.model.lora, critic.settings.model.lora
        sequences = draw(actor)
        values = critic.compute_values(sequences).result()
        batch = sequences.batch.with_(values=values, returns=values + 1.0, advantages=values + 1.0)
        norms = actor.update(batch).result()["actor/grad_norm"], critic.update(batch).result()["critic/grad_norm"]

    assert [0 if found is None else found.rank for found in lora] == list(ranks)
    assert min(norms) > 0
