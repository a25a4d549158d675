"""The actor's loss over a batch with and without separate old log-probabilities."""

from __future__ import annotations

import pytest
import torch
from fakes.engines import random_batch
from fakes.part_settings import loss_settings

from rl_compat.algorithms.off_policy.importance import mismatch_metrics
from rl_compat.objectives.actor_critic import LossSettings, policy_loss
from rl_compat.training.types import BatchTotals, TokenOutputs


def gradient(old_logprobs: torch.Tensor | None, settings: LossSettings) -> tuple[torch.Tensor, dict[str, float]]:
    batch = random_batch()
    torch.manual_seed(1)
    logprobs = (-3 * torch.rand(batch.response_ids.shape)).requires_grad_()
    batch = batch.with_(
        advantages=torch.randn(batch.response_ids.shape),
        rollout_logprobs=logprobs.detach() + 0.25,
        ref_logprobs=logprobs.detach() - 0.5,
        old_logprobs=None if old_logprobs is None else logprobs.detach(),
    )
    totals = BatchTotals(num_tokens=int(batch.response_mask.sum()), num_sequences=len(batch))
    loss, metrics = policy_loss(batch, TokenOutputs(logprobs=logprobs), totals, settings)
    loss.backward()
    assert logprobs.grad is not None
    return logprobs.grad, {name: float(value) for name, value in metrics.items()}


def test_one_update_needs_no_old_logprobs() -> None:
    settings = loss_settings(kl_loss="k3", kl_loss_coef=0.1)
    given, with_old = gradient(torch.zeros(1), settings)
    absent, without_old = gradient(None, settings)
    assert given.abs().sum() > 0
    assert torch.equal(given, absent)
    assert with_old.items() <= without_old.items()


def test_an_update_without_old_logprobs_says_how_far_the_sampler_was() -> None:
    _, metrics = gradient(None, loss_settings())
    for name in ("mean", "max"):
        torch.testing.assert_close(metrics[f"training/rollout_logprobs_diff_{name}"], 0.25, rtol=1e-4, atol=0)
    assert 0 < metrics["training/rollout_probs_diff_mean"] < metrics["training/rollout_probs_diff_max"] < 0.29


def test_the_shares_of_micro_batches_add_up_to_how_far_the_sampler_was_in_all() -> None:
    """`rollout_corr/*` where the update's own log-probabilities are the old ones."""
    batch = random_batch()
    torch.manual_seed(2)
    logprobs, noise = -torch.rand(2, *batch.response_ids.shape)
    batch = batch.with_(advantages=torch.ones_like(logprobs), rollout_logprobs=logprobs + 0.2 * noise)
    totals = BatchTotals(num_tokens=int(batch.response_mask.sum()), num_sequences=len(batch))
    summed: dict[str, float] = {}
    for rows in ([0, 3], [1, 2, 4]):
        part, current = batch.select(rows), logprobs[rows]
        outputs = TokenOutputs(logprobs=current[:, : part.response_ids.shape[1]])
        for name, value in policy_loss(part, outputs, totals, loss_settings())[1].items():
            summed[name] = summed.get(name, 0.0) + float(value)

    assert batch.rollout_logprobs is not None
    whole = mismatch_metrics(
        old_logprobs=logprobs, rollout_logprobs=batch.rollout_logprobs, response_mask=batch.response_mask
    )
    means = {name: value for name, value in whole.items() if not name.endswith(("_max", "_min"))}
    assert means == pytest.approx({name: summed[name] for name in means}, rel=1e-5, abs=1e-7)
    assert len(means) == 11
