"""What an update makes from a whole mini-batch does not depend on how that is split into micro-batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.engines import load_settings, random_batch, role_plan
from fakes.part_settings import lora_of, loss_settings
from torch import Tensor

from rl_compat.algorithms.losses.policy import POLICY_LOSSES
from rl_compat.batch import Batch
from rl_compat.config.types import OffPolicyConfig
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.workers.policy import PolicySettings, PolicyWorker

NUMBERS = {"clip_cov__fraction": 0.3, "clip_cov__low": -5.0, "kl_cov__fraction": 0.3, "kl_cov__coef": 1.0}


def worker(folder: Path, *, rows: int, loss: str, **changes: Any) -> PolicyWorker:
    settings = PolicySettings(
        model=load_settings(folder, role=role_plan(micro_batch_size=rows)),
        temperature=1.0,
        num_epochs=1,
        optimizer=OptimizerSettings(lr=1e-3, eps=1e-6),  # rounding in a gradient near 0 is not blown up to a whole step
        loss=loss_settings(
            policy_loss=loss,
            loss_aggregation=POLICY_LOSSES[loss].aggregation,
            width=9,
            **NUMBERS,
        ),
    )
    return PolicyWorker(replace(settings, **changes))


def sampled_by_another(actor: PolicyWorker) -> Batch:
    """A batch whose sampler and whose old policy both differ from the actor."""
    batch = random_batch()
    torch.manual_seed(5)
    current = actor.logprobs(batch=batch)
    noise, other = torch.randn(2, *current.shape)
    return batch.with_(old_logprobs=current + 0.3 * noise, rollout_logprobs=current + 0.3 * other)


def updated(folder: Path, *, rows: int, loss: str, batch: Batch | None = None, **changes: Any) -> tuple[Any, ...]:
    actor = worker(folder, rows=rows, loss=loss, **changes)
    metrics = actor.update(batch=sampled_by_another(actor) if batch is None else batch, seed=3)
    weights = {name: parameter.detach().clone() for name, parameter in actor.engine.parameters.items()}
    return weights, {name: value for name, value in metrics.items() if name != "actor/num_micro_batches"}


def assert_same_update(mine: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    torch.testing.assert_close(mine[0], other[0], rtol=1e-4, atol=5e-5)
    assert mine[1].keys() == other[1].keys()
    assert mine[1] == pytest.approx(other[1], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("loss", POLICY_LOSSES)
def test_micro_batches_change_no_policy_loss(loss: str, llama_folder: Path) -> None:
    """A-ALG-04, A-ALG-05: in one piece and as 2 + 2 + 1 rows, two epochs of two mini-batches."""
    steps = {"mini_batch_size": 3, "num_epochs": 2}

    whole = updated(llama_folder, rows=8, loss=loss, **steps)

    assert_same_update(updated(llama_folder, rows=2, loss=loss, **steps), whole)


@pytest.mark.parametrize(
    "correction",
    [
        {"importance": "token", "truncate": 1.1, "normalize": True},
        {"importance": "sequence", "band": (0.5, 2.0)},
        {"reject": ("token_k1:0.8_1.25",)},
        {"importance": "token", "reject": ("seq_mean_k3:0.05",)},
    ],
    ids=str,
)
def test_micro_batches_change_no_correction_under_bypass(correction: dict[str, Any], llama_folder: Path) -> None:
    bypass = {"off_policy": OffPolicyConfig(bypass=True, **correction), "mini_batch_size": 3}

    whole = updated(llama_folder, rows=8, loss="reinforce", **bypass)
    plain = updated(llama_folder, rows=8, loss="reinforce", mini_batch_size=3)

    assert_same_update(updated(llama_folder, rows=1, loss="reinforce", **bypass), whole)
    assert any(not torch.equal(whole[0][name], plain[0][name]) for name in plain[0])
    assert any(name.startswith("rollout_corr/") for name in whole[1])


def test_weights_of_a_batch_scale_its_gradient(llama_folder: Path) -> None:
    actor = worker(llama_folder, rows=8, loss="reinforce")
    batch = sampled_by_another(actor)
    weights = torch.full(batch.response_ids.shape, 2.0)

    doubled = actor.update(batch=batch.with_(weights=weights), seed=3)

    single = worker(llama_folder, rows=8, loss="reinforce").update(batch=batch, seed=3)
    assert doubled["actor/grad_norm"] == pytest.approx(2 * single["actor/grad_norm"], rel=1e-4)


@pytest.mark.parametrize("loss", ["clip_cov", "kl_cov"])
def test_a_selection_needs_no_pass_while_the_old_policy_is_the_current_one(loss: str, llama_folder: Path) -> None:
    """The same update comes out whether old log-probabilities are there or the actor computes them."""

    def batch(folder: Path, old: bool) -> Batch:
        actor = worker(folder, rows=8, loss=loss)
        plain = random_batch()
        current: Tensor = actor.logprobs(batch=plain)
        return plain.with_(rollout_logprobs=current, old_logprobs=current if old else None)

    given = updated(llama_folder, rows=8, loss=loss, batch=batch(llama_folder, True))
    computed = updated(llama_folder, rows=8, loss=loss, batch=batch(llama_folder, False))

    torch.testing.assert_close(computed[0], given[0], rtol=1e-4, atol=1e-6)


def test_tokens_come_with_the_sum_of_squared_probabilities(llama_folder: Path) -> None:
    actor = worker(llama_folder, rows=2, loss="ppo_clip")
    batch = random_batch()

    outputs = actor.token_outputs(batch=batch)

    assert torch.equal(outputs["logprobs"], actor.logprobs(batch=batch))
    squares, mask = outputs["sum_pi_squared"], batch.response_mask
    assert bool((squares[mask] >= outputs["logprobs"][mask].exp().square()).all())
    assert bool((squares[mask] <= 1).all())


def test_the_entropy_of_the_policy_is_always_measured(llama_folder: Path) -> None:
    actor, batch = worker(llama_folder, rows=2, loss="ppo_clip"), random_batch()
    entropy = actor.engine.logprobs(batch, temperature=actor.settings.temperature, wanted=("entropy",)).entropy
    assert entropy is not None

    metrics = actor.update(batch=batch, seed=0)

    assert metrics["actor/entropy"] == pytest.approx(float(entropy[batch.response_mask].mean()), rel=1e-5)
    assert "actor/entropy_loss" not in metrics


def test_dropout_depends_on_the_seed_of_an_update_alone(llama_folder: Path) -> None:
    def trained(seed: int, *, before: int) -> Tensor:
        torch.manual_seed(5)
        model = load_settings(llama_folder, role=role_plan(micro_batch_size=8), lora=lora_of(rank=4, dropout=0.5))
        actor = worker(llama_folder, rows=8, loss="ppo_clip", model=model)
        torch.manual_seed(before)
        state = torch.get_rng_state()
        actor.update(batch=random_batch(), seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        return torch.cat([weight.detach().flatten() for weight in actor.engine.parameters.values()])

    first = trained(1, before=0)
    assert torch.equal(trained(1, before=9), first)
    assert not torch.equal(trained(2, before=0), first)
