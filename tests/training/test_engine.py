"""The numbers of the engines: padding, splitting, precision and checkpointing change nothing they should not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes.engines import (
    LENGTHS,
    causal_lm,
    random_batch,
    role_plan,
    sequence_mean_loss,
    token_mean_loss,
    value_mean_loss,
    value_model,
)
from fakes.part_settings import lora_of
from torch import Tensor

from rl_compat.batch import Batch
from rl_compat.models.lora import LoraSettings
from rl_compat.training.engine import PolicyEngine, ValueEngine
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.training.types import BatchTotals, TokenOutputs

FAST = OptimizerSettings(lr=1e-2, max_grad_norm=0.0)


def _policy(folder: Path, *, lora: LoraSettings | None = None, **plan) -> PolicyEngine:
    role = role_plan(**plan)
    torch.manual_seed(0)
    return PolicyEngine(causal_lm(folder, role=role, lora=lora), role=role, optimizer=FAST)


def _critic(folder: Path, **plan) -> ValueEngine:
    role = role_plan("critic", **plan)
    model = value_model(folder, role=role)
    torch.manual_seed(0)
    torch.nn.init.normal_(model.head.weight, std=0.1)
    return ValueEngine(model, role=role, optimizer=FAST)


class _Gradients:
    """The gradients that an engine has gathered after its last backward."""

    def __init__(self, engine: PolicyEngine | ValueEngine) -> None:
        self.sums: dict[str, Tensor] = {}
        for name, parameter in engine.parameters.items():
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: self._keep(name, p))

    def _keep(self, name: str, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.sums[name] = parameter.grad.clone()


def _difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    scale = max(float(tensor.abs().max()) for tensor in one.values())
    return max(float((one[name] - other[name]).abs().max()) for name in one) / scale


@pytest.mark.parametrize("fixture", ["llama_folder", "qwen2_folder"])
def test_logprobs_of_padded_rows_equal_those_computed_alone(fixture: str, request: pytest.FixtureRequest) -> None:
    engine = _policy(request.getfixturevalue(fixture))
    batch = random_batch()
    together = engine.logprobs(batch, temperature=0.7, wanted=("entropy",))
    assert together.entropy is not None
    for row, (_, n) in enumerate(LENGTHS):
        ids = torch.tensor([[*batch.prompt_ids[row], *batch.response_ids[row, :n].tolist()]])
        logits = engine.model(ids).logits[0, -n - 1 : -1] / 0.7
        expected = torch.distributions.Categorical(logits=logits)
        torch.testing.assert_close(together.logprobs[row, :n], expected.log_prob(ids[0, -n:]), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(together.entropy[row, :n], expected.entropy(), atol=1e-5, rtol=1e-5)
        assert together.logprobs[row, n:].abs().sum() == 0


def test_a_greedy_temperature_gives_logprobs_at_one(llama_folder: Path) -> None:
    engine = _policy(llama_folder)
    batch = random_batch()
    assert torch.equal(engine.logprobs(batch, temperature=0).logprobs, engine.logprobs(batch, temperature=1.0).logprobs)


def test_values_belong_to_the_state_before_each_token(llama_folder: Path) -> None:
    engine = _critic(llama_folder)
    batch = random_batch([(4, 3), (2, 1)])
    values = engine.values(batch)
    ids = torch.tensor([[*batch.prompt_ids[0], *batch.response_ids[0].tolist()]])
    torch.testing.assert_close(values[0], engine.model(ids)[0, 3:6])
    assert values[1, 1:].abs().sum() == 0


def test_of_a_metric_whose_name_ends_in_max_the_largest_micro_batch_counts(llama_folder: Path) -> None:
    def loss(batch: Batch, outputs: TokenOutputs, totals: BatchTotals) -> tuple[Tensor, dict[str, Tensor]]:
        value, metrics = token_mean_loss(batch, outputs, totals)
        return value, metrics | {"surprise_max": -outputs.logprobs.min()}

    whole, split = _policy(llama_folder), _policy(llama_folder, micro_batch_size=1)
    batch = random_batch()
    expected = whole.update(batch, loss=loss, temperature=1.0)["surprise_max"]
    assert split.update(batch, loss=loss, temperature=1.0)["surprise_max"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss", [token_mean_loss, sequence_mean_loss])
@pytest.mark.parametrize(
    "limits", [{"micro_batch_size": 1}, {"micro_batch_size": 2}, {"max_tokens_per_micro_batch": 20}]
)
def test_micro_batches_give_the_loss_and_gradients_of_one_batch(
    llama_folder: Path, loss: Callable, limits: dict[str, int]
) -> None:
    """A-ALG-04 and A-ALG-05: five rows, split in ones, in 2+2+1, and by tokens."""
    whole, split = _policy(llama_folder), _policy(llama_folder, **limits)
    expected, actual = _Gradients(whole), _Gradients(split)
    batch = random_batch()
    expected_metrics = whole.update(batch, loss=loss, temperature=0.9, wanted=("entropy",))
    metrics = split.update(batch, loss=loss, temperature=0.9, wanted=("entropy",))
    assert metrics["num_micro_batches"] > expected_metrics["num_micro_batches"] == 1
    assert metrics["loss"] == pytest.approx(expected_metrics["loss"], rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(expected_metrics["grad_norm"], rel=1e-5)
    assert _difference(expected.sums, actual.sums) < 1e-5


def test_the_token_mean_weighs_tokens_and_not_micro_batches(llama_folder: Path) -> None:
    """A-ALG-04: losses [4] and [1, 1, 1] are 1.75 on average, not 2.5."""

    def loss(batch, outputs, totals):
        wanted = torch.where(batch.response_lengths[:, None] == 1, 4.0, 1.0)
        per_token = (wanted + 0.0 * outputs.logprobs) * batch.response_mask
        value = per_token.sum() / totals.num_tokens
        return value, {"loss": value}

    batch = random_batch([(2, 1), (2, 3)])
    metrics = _policy(llama_folder, micro_batch_size=1).update(batch, loss=loss, temperature=1.0)
    assert metrics["loss"] == pytest.approx(1.75)


def test_gradient_checkpointing_gives_the_same_gradients(llama_folder: Path) -> None:
    plain, recomputed = _policy(llama_folder), _policy(llama_folder, gradient_checkpointing=True)
    expected, actual = _Gradients(plain), _Gradients(recomputed)
    calls: list[bool] = []
    layer = recomputed.model.model.layers[0]
    layer.self_attn.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    for engine in (plain, recomputed):
        engine.update(random_batch(), loss=token_mean_loss, temperature=1.0)
    assert len(calls) == 2
    assert _difference(expected.sums, actual.sums) < 1e-6


@pytest.mark.parametrize(("dtype", "tolerance"), [("bf16", 0.15), ("fp16", 0.03)])
def test_half_precision_training_stays_close_to_fp32(llama_folder: Path, dtype: str, tolerance: float) -> None:
    exact = _policy(llama_folder)
    half = _policy(llama_folder, compute_dtype=dtype, loss_scaling=dtype == "fp16")
    batch = random_batch()
    expected, actual = (engine.logprobs(batch, temperature=1.0).logprobs for engine in (exact, half))
    assert 0 < (expected - actual).abs().max() < 2 * tolerance
    one, other = (engine.update(batch, loss=token_mean_loss, temperature=1.0) for engine in (exact, half))
    assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=tolerance)
    assert all(parameter.dtype == torch.float32 for parameter in half.parameters.values())


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_frozen_half_copy_agrees_with_the_actor_it_was_copied_from(tmp_path: Path, dtype: str) -> None:
    """Weights that half precision can hold: storing them in it changes no number of the reference."""
    from fakes.models import save_random_model
    from safetensors.torch import load_file, save_file

    folder = save_random_model(tmp_path / "model")
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    weights = {name: tensor.to(half).float() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    role = role_plan("reference", storage_dtype=dtype, compute_dtype=dtype)
    reference = PolicyEngine(causal_lm(folder, role=role), role=role, optimizer=None)
    actor = _policy(folder, compute_dtype=dtype)
    batch = random_batch()
    assert torch.equal(*(engine.logprobs(batch, temperature=1.0).logprobs for engine in (actor, reference)))


def test_a_critic_learns_its_returns(llama_folder: Path) -> None:
    engine = _critic(llama_folder, micro_batch_size=2)
    batch = random_batch()
    losses = [engine.update(batch, loss=value_mean_loss)["loss"] for _ in range(30)]
    assert losses[-1] < 0.3 * losses[0]


def test_adapters_learn_and_the_base_stays(llama_folder: Path) -> None:
    """A-CKPT-07: base weights are bitwise unchanged after steps."""
    engine = _policy(llama_folder, lora=lora_of(rank=4, dropout=0.1), gradient_checkpointing=True)
    frozen = {name: p.clone() for name, p in engine.model.named_parameters() if not p.requires_grad}
    losses = [engine.update(random_batch(), loss=token_mean_loss, temperature=1.0)["loss"] for _ in range(10)]
    assert losses[-1] < losses[0]
    assert all(torch.equal(dict(engine.model.named_parameters())[name], p) for name, p in frozen.items())
    assert all("lora_" in name for name in engine.parameters)


def test_gradients_are_cut_to_the_limit(llama_folder: Path) -> None:
    role = role_plan()
    sums = []
    for limit in (0.0, 0.01):
        settings = OptimizerSettings(lr=1.0, betas=(0.0, 0.0), eps=1.0, weight_decay=0.0, max_grad_norm=limit)
        engine = PolicyEngine(causal_lm(llama_folder, role=role), role=role, optimizer=settings)
        before = {name: p.detach().clone() for name, p in engine.parameters.items()}
        metrics = engine.update(random_batch(), loss=token_mean_loss, temperature=1.0)
        assert metrics["grad_norm"] > 0.1
        sums.append(sum(float((p.detach() - before[name]).abs().sum()) for name, p in engine.parameters.items()))
    assert sums[1] < 0.1 * sums[0]


def test_the_learning_rate_follows_the_schedule(llama_folder: Path) -> None:
    role = role_plan()
    settings = OptimizerSettings(lr=1.0e-3, schedule="linear", warmup_steps=1, total_steps=3)
    engine = PolicyEngine(causal_lm(llama_folder, role=role), role=role, optimizer=settings)
    rates = [engine.update(random_batch(), loss=token_mean_loss, temperature=1.0)["lr"] for _ in range(3)]
    assert rates == pytest.approx([0.5e-3, 1.0e-3, 0.5e-3])


def test_the_plan_names_the_optimizer(llama_folder: Path) -> None:
    pytest.importorskip("bitsandbytes")
    engine = _policy(llama_folder, optimizer="adamw8bit")
    assert type(engine.step.optimizer).__name__ == "AdamW8bit"
    assert engine.update(random_batch(), loss=token_mean_loss, temperature=1.0)["skipped_steps"] == 0
