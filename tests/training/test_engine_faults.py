"""What an engine does when a step cannot be done as asked: overflow, nothing to train on, out of memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from fakes.engines import causal_lm, random_batch, role_plan, token_mean_loss
from fakes.models import save_random_model
from fakes.part_settings import lora_of

from rl_compat.errors import NotFiniteError, RLCompatError
from rl_compat.models.lora import LoraSettings
from rl_compat.training.engine import PolicyEngine
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.training.step import LOWEST_SCALE


def _engine(
    folder: Path, *, settings: OptimizerSettings = OptimizerSettings(lr=1e-3), lora: LoraSettings | None = None, **plan
) -> PolicyEngine:
    role = role_plan(**plan)
    return PolicyEngine(causal_lm(folder, role=role, lora=lora), role=role, optimizer=settings)


def _weights(engine: PolicyEngine) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in engine.parameters.items()}


def _unchanged(engine: PolicyEngine, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(parameter, before[name]) for name, parameter in engine.parameters.items())


def test_rows_left_out_change_nothing(llama_folder: Path) -> None:
    """A-ALG-13: a micro-batch without a token to train on has zero loss and backward works."""
    batch = random_batch()
    rows = torch.tensor([True, False, True, True, True])
    excluded = batch.with_(response_mask=batch.response_mask & rows[:, None])
    with_them, without = _engine(llama_folder, micro_batch_size=1), _engine(llama_folder)
    metrics = with_them.update(excluded, loss=token_mean_loss, temperature=1.0)
    expected = without.update(batch.select([0, 2, 3, 4]), loss=token_mean_loss, temperature=1.0)
    assert metrics["num_micro_batches"] == 5
    assert metrics["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)


def test_a_step_without_any_token_is_skipped_and_said(llama_folder: Path) -> None:
    """A-ALG-13: the whole step is masked."""
    engine = _engine(llama_folder)
    before = _weights(engine)
    batch = random_batch()
    metrics = engine.update(
        batch.with_(response_mask=torch.zeros_like(batch.response_mask)), loss=token_mean_loss, temperature=1.0
    )
    assert metrics["skipped_steps"] == 1
    assert _unchanged(engine, before)
    assert [note.count("`actor`") for note in engine.take_notes()] == [1]
    assert engine.take_notes() == []


def _infinite_gradient(batch, outputs, totals):
    """A finite loss whose gradient is NaN for the rows 12 and 14."""
    chosen = torch.isin(batch.rows, torch.tensor([12, 14]))[:, None] & batch.response_mask
    loss, metrics = token_mean_loss(batch, outputs, totals)
    return loss + (outputs.logprobs * 0.0)[chosen].sum().abs().sqrt(), metrics


def test_five_gradients_in_a_row_that_are_not_finite_stop_with_their_rows(llama_folder: Path) -> None:
    """A-ALG-14: the weights are those before the first."""
    engine = _engine(llama_folder, micro_batch_size=1)
    before = _weights(engine)
    batch = random_batch().with_(rows=torch.tensor([11, 12, 13, 14, 15]))
    for _ in range(4):
        assert engine.update(batch, loss=_infinite_gradient, temperature=1.0)["skipped_steps"] == 1
    with pytest.raises(NotFiniteError) as stop:
        engine.update(batch, loss=_infinite_gradient, temperature=1.0)
    assert " 5 " in stop.value.message
    assert stop.value.message.endswith("row 12")
    assert _unchanged(engine, before)
    assert all(parameter.grad is None for parameter in engine.parameters.values())


@pytest.mark.parametrize("plan", [{}, {"compute_dtype": "fp16", "loss_scaling": True}])
def test_a_loss_that_is_not_finite_stops_at_once_with_its_rows(llama_folder: Path, plan: dict) -> None:
    """No loss scale helps: neither the scale nor a weight changes."""
    engine = _engine(llama_folder, micro_batch_size=2, **plan)
    before, scale = _weights(engine), engine.step.scaler.scale
    batch = random_batch().with_(rows=torch.tensor([11, 12, 13, 14, 15]))
    broken = batch.with_(advantages=torch.where(batch.rows[:, None] == 13, torch.inf, 1.0) * batch.advantages.abs())
    with pytest.raises(NotFiniteError) as stop:
        engine.update(broken, loss=token_mean_loss, temperature=1.0)
    assert " 13" in stop.value.message.rpartition("row")[2]
    assert engine.step.scaler.scale == scale
    assert engine.step.num_updates == 0
    assert _unchanged(engine, before)


class _OutOfMemoryAbove:
    """A loss that runs out of memory when a micro-batch has more rows than fit."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.rows: list[int] = []

    def __call__(self, batch, outputs, totals):
        self.rows.append(len(batch))
        if len(batch) > self.max_rows:
            raise torch.OutOfMemoryError("no room")
        return token_mean_loss(batch, outputs, totals)


def test_out_of_memory_redoes_the_same_step_in_smaller_pieces(llama_folder: Path) -> None:
    engine, plain = _engine(llama_folder), _engine(llama_folder)
    loss = _OutOfMemoryAbove(2)
    batch = random_batch()
    metrics = engine.update(batch, loss=loss, temperature=1.0)
    expected = plain.update(batch, loss=token_mean_loss, temperature=1.0)
    assert loss.rows == [5, 2, 2, 1]
    assert metrics["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    assert len(engine.take_notes()) == 1


def test_gradients_of_the_failed_attempt_are_not_kept(llama_folder: Path) -> None:
    """The first micro-batch succeeds, the second fails: its gradients must not count twice."""

    class FailsOnce(_OutOfMemoryAbove):
        def __call__(self, batch, outputs, totals):
            if len(self.rows) == 1:
                self.rows.append(len(batch))
                raise torch.OutOfMemoryError("no room")
            return super().__call__(batch, outputs, totals)

    engine, plain = _engine(llama_folder, micro_batch_size=2), _engine(llama_folder)
    loss = FailsOnce(2)
    batch = random_batch()
    metrics = engine.update(batch, loss=loss, temperature=1.0)
    expected = plain.update(batch, loss=token_mean_loss, temperature=1.0)
    assert loss.rows == [2, 2, 1, 1, 1, 1, 1]
    assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)


def test_smaller_pieces_stay_for_the_rest_of_the_run(llama_folder: Path) -> None:
    engine = _engine(llama_folder)
    loss = _OutOfMemoryAbove(2)
    for _ in range(2):
        engine.update(random_batch(), loss=loss, temperature=1.0)
    assert loss.rows == [5, 2, 2, 1, 2, 2, 1]
    assert engine.limits.max_rows == 2


def test_a_single_row_that_does_not_fit_stops_with_advice(llama_folder: Path) -> None:
    engine = _engine(llama_folder)
    before = _weights(engine)
    with pytest.raises(RLCompatError) as stop:
        engine.update(random_batch(), loss=_OutOfMemoryAbove(0), temperature=1.0)
    assert "10 tokens" in stop.value.message
    assert "`cpu`" in stop.value.message
    assert _unchanged(engine, before)
    assert all(parameter.grad is None for parameter in engine.parameters.values())


def _large_loss(batch, outputs, totals):
    """Its gradient overflows fp16 at the first loss scale, and not at lower ones."""
    loss, metrics = token_mean_loss(batch, outputs, totals)
    return 3000.0 * loss, metrics


def test_an_overflow_repeats_the_mini_batch_at_lower_scales_until_it_learns(llama_folder: Path) -> None:
    """F3: a usable scale exists below the one where the run used to stop."""
    settings = OptimizerSettings(lr=1e-3, schedule="linear", warmup_steps=2, total_steps=4)
    engine = _engine(llama_folder, compute_dtype="fp16", loss_scaling=True, settings=settings)
    exact = _engine(llama_folder)
    before = _weights(engine)
    metrics = engine.update(random_batch(), loss=_large_loss, temperature=1.0)
    expected = exact.update(random_batch(), loss=_large_loss, temperature=1.0)
    assert metrics["skipped_steps"] == 0
    assert metrics["loss_scale"] <= 2.0**8
    assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.03)
    assert metrics["loss"] == pytest.approx(expected["loss"], rel=0.03)
    assert not _unchanged(engine, before)
    assert engine.update(random_batch(), loss=token_mean_loss, temperature=1.0)["lr"] == pytest.approx(2e-3 / 3)


def test_an_overflow_at_the_lowest_scale_stops(llama_folder: Path) -> None:
    engine = _engine(llama_folder, compute_dtype="fp16", loss_scaling=True, micro_batch_size=1)
    before = _weights(engine)
    batch = random_batch().with_(rows=torch.tensor([11, 12, 13, 14, 15]))
    with pytest.raises(NotFiniteError) as stop:
        engine.update(batch, loss=_infinite_gradient, temperature=1.0)
    assert f"{LOWEST_SCALE:g}" in stop.value.message
    assert stop.value.message.endswith("row 12")
    assert engine.step.scaler.scale == LOWEST_SCALE
    assert engine.step.num_updates == 0
    assert _unchanged(engine, before)


def test_the_learning_rate_schedule_holds_at_a_skipped_step(llama_folder: Path) -> None:
    settings = OptimizerSettings(lr=1e-3, schedule="linear", warmup_steps=2, total_steps=4)
    engine = _engine(llama_folder, settings=settings)
    batch = random_batch().with_(rows=torch.tensor([11, 12, 13, 14, 15]))
    losses = (_infinite_gradient, token_mean_loss, token_mean_loss)
    steps = [engine.update(batch, loss=loss, temperature=1.0) for loss in losses]
    assert [step["lr"] for step in steps] == pytest.approx([1e-3 / 3, 1e-3 / 3, 2e-3 / 3])
    assert [step["skipped_steps"] for step in steps] == [1, 0, 0]


def _with_dropout(folder: Path, *, scale: float = 2.0**13, **plan) -> PolicyEngine:
    engine = _engine(folder, lora=lora_of(rank=4, dropout=0.5), **plan)
    engine.step.scaler.scale = scale if engine.step.scaler.enabled else 1.0
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in engine.parameters.values():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    torch.manual_seed(7)
    return engine


def test_a_step_repeated_after_out_of_memory_draws_the_same_dropout_masks(llama_folder: Path) -> None:
    """F9: the step equals one that was planned with the smaller micro-batches."""
    disturbed = _with_dropout(llama_folder, micro_batch_size=2)
    metrics = disturbed.update(random_batch(), loss=_OutOfMemoryAbove(1), temperature=1.0)
    state = torch.get_rng_state()
    plain = _with_dropout(llama_folder, micro_batch_size=1)
    expected = plain.update(random_batch(), loss=token_mean_loss, temperature=1.0)
    assert metrics["loss"] == expected["loss"]
    assert torch.equal(state, torch.get_rng_state())
    assert _unchanged(disturbed, _weights(plain))


def test_a_step_repeated_after_an_overflow_draws_the_same_dropout_masks(llama_folder: Path) -> None:
    fp16 = {"compute_dtype": "fp16", "loss_scaling": True}
    disturbed = _with_dropout(llama_folder, **fp16)
    metrics = disturbed.update(random_batch(), loss=_large_loss, temperature=1.0)
    state = torch.get_rng_state()
    assert metrics["loss_scale"] < 2.0**13
    plain = _with_dropout(llama_folder, scale=metrics["loss_scale"], **fp16)
    expected = plain.update(random_batch(), loss=_large_loss, temperature=1.0)
    assert metrics == expected
    assert torch.equal(state, torch.get_rng_state())
    assert _unchanged(disturbed, _weights(plain))


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_model_that_is_not_finite_stops_at_once_with_row_token_and_dtype(
    tmp_path: Path, dtype: str, value: float
) -> None:
    """One broken row of the embedding: the first row of the data that holds the token is named, in both phases."""
    folder = save_random_model(tmp_path, tie_word_embeddings=False)
    engine = _engine(folder, compute_dtype=dtype, loss_scaling=dtype == "fp16", micro_batch_size=2)
    batch = random_batch().with_(rows=torch.tensor([11, 12, 13, 14, 15]))
    broken = int(batch.response_ids[2, 4])
    tokens = [[*prompt, *ids.tolist()] for prompt, ids in zip(batch.prompt_ids, batch.response_ids, strict=True)]
    first = next(row for row, ids in enumerate(tokens) if broken in ids)
    with torch.no_grad():
        engine.model.model.embed_tokens.weight[broken] = value
    before, scale = _weights(engine), engine.step.scaler.scale

    for compute in (
        lambda: engine.logprobs(batch, temperature=1.0),
        lambda: engine.update(batch, loss=token_mean_loss, temperature=1.0),
    ):
        with pytest.raises(NotFiniteError) as error:
            compute()
        assert f"`{dtype}`" in error.value.message
        assert re.search(rf"token \d+ of row {11 + first}$", error.value.message)
    assert engine.step.scaler.scale == scale
    after = _weights(engine)
    assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)
