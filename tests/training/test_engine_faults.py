"""What an engine does when a step cannot be done as asked: overflow, nothing to train on, out of memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes.engines import random_batch, role_plan, token_mean_loss

from rl_compat.errors import RLCompatError
from rl_compat.models.load import load_causal_lm
from rl_compat.training.engine import OptimizerSettings, PolicyEngine


def _engine(folder: Path, **plan) -> PolicyEngine:
    role = role_plan(**plan)
    return PolicyEngine(load_causal_lm(folder, role=role), role=role, optimizer=OptimizerSettings(lr=1e-3))


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
    assert "no token to train on" in engine.take_notes()[0]
    assert engine.take_notes() == []


def test_an_overflow_skips_the_step_and_halves_the_scale(llama_folder: Path) -> None:
    """A-ALG-14: one weight pushes the activations past 65504; training goes on when it is back."""
    engine = _engine(llama_folder, compute_dtype="fp16", loss_scaling=True)
    batch = random_batch()
    assert engine.update(batch, loss=token_mean_loss, temperature=1.0)["skipped_steps"] == 0
    scale = engine.step.scaler.scale
    weight = engine.model.model.layers[0].mlp.down_proj.weight
    with torch.no_grad():
        weight.mul_(1e6)
    before = _weights(engine)
    metrics = engine.update(batch, loss=token_mean_loss, temperature=1.0)
    assert metrics["skipped_steps"] == 1
    assert "loss" not in metrics
    assert engine.step.scaler.scale == scale / 2
    assert _unchanged(engine, before)
    with torch.no_grad():
        weight.mul_(1e-6)
    assert engine.update(batch, loss=token_mean_loss, temperature=1.0)["skipped_steps"] == 0
    assert all(torch.isfinite(parameter).all() for parameter in engine.parameters.values())


def test_five_overflows_in_a_row_stop_with_advice(llama_folder: Path) -> None:
    """A-ALG-14: the weights are those before the overflow."""
    engine = _engine(llama_folder, compute_dtype="fp16", loss_scaling=True)
    with torch.no_grad():
        engine.model.model.layers[0].mlp.down_proj.weight.mul_(1e6)
    before = _weights(engine)
    batch = random_batch()
    for _ in range(4):
        engine.update(batch, loss=token_mean_loss, temperature=1.0)
    with pytest.raises(RLCompatError, match=r"5 optimizer steps in a row.*\n.*compute_dtype=fp32"):
        engine.update(batch, loss=token_mean_loss, temperature=1.0)
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
    with pytest.raises(RLCompatError, match=r"one sequence of 10 tokens does not fit on `cpu`"):
        engine.update(random_batch(), loss=_OutOfMemoryAbove(0), temperature=1.0)
    assert _unchanged(engine, before)
    assert all(parameter.grad is None for parameter in engine.parameters.values())
