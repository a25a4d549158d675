"""Learning from offline data: each loss against an explicit formula, and what must not change it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.engines import load_settings, role_plan
from fakes.part_settings import lora_of
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import logsigmoid, sigmoid
from transformers import AutoModelForCausalLM

from rl_compat.config.types import AlgorithmConfig, DPOConfig, KTOConfig
from rl_compat.data.encode.conversations import Example
from rl_compat.data.encode.items import Item, ItemBatch, item_batch
from rl_compat.distributed.pool import ResourcePool
from rl_compat.models.lora import LoraSettings
from rl_compat.objectives.offline import Counts, Objective, objective_of
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.workers.learner import LearnerModel, LearnerSettings, LearnerWorker

LENGTHS = ((3, 5), (7, 2), (2, 9), (4, 4), (5, 1), (6, 3))


def example(prompt: int, response: int, generator: torch.Generator) -> Example:
    ids = torch.randint(6, 60, (prompt + response,), generator=generator).tolist()
    learned = tuple(index != 1 for index in range(response))
    return Example(prompt_ids=tuple(ids[:prompt]), response_ids=tuple(ids[prompt:]), learned=learned)


def singles(*, labels: bool = False, seed: int = 0) -> list[Item]:
    """Six responses, the second token of each not learned; with labels the even ones are good."""
    generator = torch.Generator().manual_seed(seed)
    return [
        Item(examples=(example(*lengths, generator),), preferred=(not labels or row % 2 == 0,), row=row)
        for row, lengths in enumerate(LENGTHS)
    ]


def pairs() -> list[Item]:
    """Six pairs with margins."""
    generator = torch.Generator().manual_seed(1)
    return [
        Item(
            examples=(example(3, n, generator), example(3, 10 - n, generator)),
            preferred=(True, False),
            margin=0.1 * n,
            row=n,
        )
        for n in range(2, 8)
    ]


def objective_for(name: Any, **settings: Any) -> Objective:
    return objective_of(AlgorithmConfig(name=name, **settings))


def learner(folder: Path, objective: Objective, *, lora: LoraSettings | None = None, **changes: Any) -> LearnerModel:
    settings: dict[str, Any] = {
        "mini_batch_size": 6,
        "optimizer": OptimizerSettings(lr=1e-2, max_grad_norm=0.0),
        "pack_tokens": None,
    }
    options = {name: changes.pop(name) for name in list(changes) if name in settings}
    torch.manual_seed(0)
    return LearnerModel(
        LearnerSettings(
            model=load_settings(folder, role=role_plan(**({"micro_batch_size": 64} | changes)), lora=lora),
            objective=objective,
            **(settings | options),
        ),
        pool=ResourcePool(gpus=[]),
    )


def model_values(folder: Path, batch: ItemBatch, *, grad: bool = False) -> tuple[Tensor, Any]:
    """[B] log-probabilities of what is learned, straight from the model's logits."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    values = []
    for row in range(len(batch)):
        n = int(batch.response_lengths[row])
        ids = torch.tensor([[*batch.prompt_ids[row], *batch.response_ids[row, :n].tolist()]])
        logprobs = model(ids).logits[0].log_softmax(-1)[-n - 1 : -1].gather(1, ids[0, -n:, None])[:, 0]
        values.append((logprobs * batch.response_mask[row, :n]).sum())
    found = torch.stack(values)
    return (found if grad else found.detach()), model


def moved(batch: ItemBatch, values: Tensor) -> ItemBatch:
    """With a reference that differs from the model by random amounts."""
    noise = torch.randn(len(batch), generator=torch.Generator().manual_seed(2))
    return batch.with_(reference=values + noise)


def written_out(name: str, batch: ItemBatch, values: Tensor, mismatched: Tensor | None) -> Tensor:
    """The losses as their papers write them."""
    if name == "sft":
        return -values.sum() / batch.response_mask.sum()
    ratio = values - batch.reference
    if name == "kto":
        assert mismatched is not None
        z = max(0.0, float(mismatched.mean()))
        good = 1 - sigmoid(0.2 * (ratio - z))
        bad = 1 - sigmoid(0.2 * (z - ratio))
        return torch.where(batch.preferred, 1.5 * good, bad).mean()
    margin = ratio[0::2] - ratio[1::2]
    if name == "hinge":
        return torch.relu(1 - 0.2 * margin).mean()
    if name == "ipo":
        lengths = batch.response_mask.sum(1)
        return (ratio[0::2] / lengths[0::2] - ratio[1::2] / lengths[1::2] - 1 / 0.4).square().mean()
    return (-0.9 * logsigmoid(0.2 * margin) - 0.1 * logsigmoid(-0.2 * margin)).mean()


OBJECTIVES: dict[str, tuple[Objective, Callable[[], list[Item]]]] = {
    "sft": (objective_for("sft"), singles),
    "dpo": (objective_for("dpo", dpo=DPOConfig(beta=0.2, label_smoothing=0.1)), pairs),
    "ipo": (objective_for("dpo", dpo=DPOConfig(loss="ipo", beta=0.2, length_normalized=True)), pairs),
    "hinge": (objective_for("dpo", dpo=DPOConfig(loss="hinge", beta=0.2)), pairs),
    "kto": (objective_for("kto", kto=KTOConfig(beta=0.2, desirable_weight=1.5)), lambda: singles(labels=True)),
}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("micro_batch_size", [64, 2])
def test_an_update_takes_the_gradient_of_the_loss_written_out(
    name: str, micro_batch_size: int, llama_folder: Path
) -> None:
    objective, make = OBJECTIVES[name]
    found = learner(llama_folder, objective, micro_batch_size=micro_batch_size)
    batch = item_batch(make())
    mismatched = log_ratios = None
    if objective.needs_mismatched:
        mismatched = item_batch(singles(seed=5))
        mismatched = moved(mismatched, model_values(llama_folder, mismatched)[0] - 2.0)
        log_ratios = model_values(llama_folder, mismatched)[0] - mismatched.reference
    values, model = model_values(llama_folder, batch, grad=True)
    batch = moved(batch, values.detach())
    loss = written_out(name, batch, values, log_ratios)
    loss.backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()

    metrics = found.update(batch, mismatched=mismatched)

    assert metrics["train/loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    assert metrics["train/grad_norm"] == pytest.approx(float(norm), rel=1e-3)


def test_packed_rows_have_the_loss_of_unpacked_ones(llama_folder: Path) -> None:
    batch = item_batch(singles())
    updates = [learner(llama_folder, objective_for("sft"), pack_tokens=tokens).update(batch) for tokens in (None, 16)]
    assert updates[0]["train/loss"] == pytest.approx(updates[1]["train/loss"], abs=1e-5)
    assert updates[0]["train/grad_norm"] == pytest.approx(updates[1]["train/grad_norm"], rel=1e-4)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_values_are_log_probabilities_of_what_is_learned(name: str, llama_folder: Path) -> None:
    objective, make = OBJECTIVES[name]
    batch = item_batch(make())
    found = learner(llama_folder, objective)
    torch.testing.assert_close(found.values(batch), model_values(llama_folder, batch)[0], atol=1e-4, rtol=0)


def test_the_reference_of_adapters_is_their_base(llama_folder: Path) -> None:
    batch = item_batch(singles())
    found = learner(llama_folder, objective_for("sft"), lora=lora_of(rank=4), optimizer=OptimizerSettings(lr=0.1))
    before = found.values(batch)
    found.update(batch)
    assert (found.values(batch) - before).abs().max() > 0.1
    torch.testing.assert_close(found.reference_values(batch), before, atol=1e-4, rtol=0)


def test_the_margins_of_dpo_are_those_of_its_rewards(llama_folder: Path) -> None:
    values, _ = model_values(llama_folder, item_batch(pairs()))
    batch = moved(item_batch(pairs()), values)
    found = learner(llama_folder, objective_for("dpo", dpo=DPOConfig(beta=0.2))).judge(batch, values)
    rewards = 0.2 * (values - batch.reference)
    assert found["rewards/chosen"] == pytest.approx(float(rewards[0::2].mean()), abs=1e-5)
    assert found["rewards/margins"] == pytest.approx(float((rewards[0::2] - rewards[1::2]).mean()), abs=1e-5)
    assert found["rewards/accuracies"] == pytest.approx(float((rewards[0::2] > rewards[1::2]).float().mean()))
    assert found["logps/rejected"] == pytest.approx(float(values[1::2].mean()), abs=1e-4)


def test_without_a_reference_its_log_probabilities_count_as_zero() -> None:
    batch, values = item_batch(pairs()), torch.randn(12)
    objective = objective_for("dpo", dpo=DPOConfig(reference_free=True))
    assert not objective.needs_reference
    found = objective.judge(batch, values, Counts.of(batch))
    expected = -logsigmoid(0.1 * (values[0::2] - values[1::2])).mean()
    assert float(found.loss) == pytest.approx(float(expected), rel=1e-5)


def test_the_order_of_rows_does_not_change_a_comparison() -> None:
    batch, values = item_batch(pairs()).with_(reference=torch.randn(12)), torch.randn(12)
    rows = torch.randperm(12).tolist()
    one = objective_for("dpo").judge(batch, values, Counts.of(batch))
    other = objective_for("dpo").judge(batch.select(rows), values[rows], Counts.of(batch))
    assert float(one.loss) == pytest.approx(float(other.loss), rel=1e-5)
    assert {name: float(part) for name, part in one.shares.items()} == pytest.approx(
        {name: float(part) for name, part in other.shares.items()}, rel=1e-4, abs=1e-6
    )


def test_labels_of_one_kind_have_no_margin() -> None:
    batch = item_batch(singles()).with_(reference=torch.zeros(6))
    found = objective_for("kto").judge(batch, torch.zeros(6), Counts.of(batch), mismatched=torch.zeros(6))
    assert "rewards/chosen" in found.shares
    assert not {"rewards/rejected", "rewards/margins"} & found.shares.keys()


def scored(texts: Callable[[int], tuple[list[int], list[int]]], count: int = 6) -> list[Item]:
    def whole(ids: list[int]) -> Example:
        return Example(prompt_ids=tuple(ids), response_ids=(0,), learned=(True,))

    return [
        Item(examples=tuple(map(whole, texts(n))), preferred=(True, False), margin=0.3, row=n) for n in range(count)
    ]


def test_a_reward_model_learns_the_loss_of_bradley_and_terry(llama_folder: Path) -> None:
    batch = item_batch(scored(lambda n: ([5 + n, 8, 9], [5 + n, 9])))
    found = learner(llama_folder, objective_for("reward_model"))
    assert found.values(batch).abs().max() == 0
    assert found.update(batch)["train/loss"] == pytest.approx(float(-logsigmoid(torch.tensor(-0.3))), rel=1e-5)
    scores = found.values(batch)
    assert scores.abs().min() > 0
    judged = found.judge(batch, scores)
    assert judged["loss"] == pytest.approx(float(-logsigmoid(scores[0::2] - scores[1::2] - 0.3).mean()), rel=1e-5)


def test_a_reward_model_is_read_at_its_last_token(llama_folder: Path, tmp_path: Path) -> None:
    found = learner(llama_folder, objective_for("reward_model"))
    batch = item_batch(scored(lambda n: ([5 + n, 8, 9, 10 + n], [5 + n, 9])))
    found.update(batch)
    worker = LearnerWorker(found.settings)
    found.group.run(LearnerWorker.save_state, folder=tmp_path).result()
    worker.load_state(folder=tmp_path)
    alone = [float(worker.engine.model(torch.tensor([list(ids)]))[0, -1]) for ids in batch.prompt_ids]
    torch.testing.assert_close(found.values(batch), torch.tensor(alone), atol=1e-5, rtol=0)


def test_the_bias_of_a_reward_model_stays_where_no_comparison_moves_it(llama_folder: Path, tmp_path: Path) -> None:
    found = learner(llama_folder, objective_for("reward_model"))
    found.update(item_batch(scored(lambda n: ([5 + n, 8, 9], [5 + n, 9]))))
    found.group.run(LearnerWorker.save_state, folder=tmp_path).result()
    assert "head.bias" not in load_file(tmp_path / "weights.safetensors")
