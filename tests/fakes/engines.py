"""Plans of a role on the CPU, random batches, and small losses with the engines' signature."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_compat.batch import Batch
from rl_compat.models.load import LoadSettings, load_causal_lm
from rl_compat.models.lora import LoraSettings
from rl_compat.models.scalar import ValueModel, load_value_model
from rl_compat.planning.types import RolePlan
from rl_compat.training.types import BatchTotals, TokenOutputs
from rl_compat.trajectory import Prompt, Trajectory

LENGTHS = ((3, 5), (7, 2), (1, 9), (4, 4), (5, 1))


def role_plan(role: str = "actor", **changes: Any) -> RolePlan:
    """fp32 on the CPU, all five rows of `random_batch` in one micro-batch."""
    plan: dict[str, Any] = {
        "role": role,
        "device": "cpu",
        "storage_dtype": "fp32",
        "compute_dtype": "fp32",
        "attention": "sdpa",
        "micro_batch_size": 8,
        "logprob_chunk_tokens": 6,
    }
    return RolePlan(**(plan | changes))


def load_settings(folder: Path, *, role: RolePlan, lora: LoraSettings | None = None) -> LoadSettings:
    return LoadSettings(folder=folder, role=role, lora=lora, trust_remote_code=False)


def causal_lm(folder: Path, *, role: RolePlan, lora: LoraSettings | None = None) -> Any:
    """The language model in a folder, as a worker loads it."""
    return load_causal_lm(load_settings(folder, role=role, lora=lora))


def value_model(folder: Path, *, role: RolePlan, lora: LoraSettings | None = None) -> ValueModel:
    """A critic on the model in a folder, as a worker loads it."""
    return load_value_model(load_settings(folder, role=role, lora=lora))


def random_batch(lengths: Sequence[tuple[int, int]] = LENGTHS, *, seed: int = 0) -> Batch:
    """Rows of (prompt, response) lengths with random token ids from 6 to 59, advantages and returns."""
    generator = torch.Generator().manual_seed(seed)

    def ids(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(6, 60, (n,), generator=generator).tolist())

    batch = Batch.from_trajectories(
        [
            Trajectory(
                prompt=Prompt(token_ids=ids(prompt), text=""),
                group=row,
                response_ids=ids(response),
                rollout_logprobs=(0.0,) * response,
                finish_reason="stop",
            )
            for row, (prompt, response) in enumerate(lengths)
        ]
    )
    shape = batch.response_ids.shape
    return batch.with_(
        advantages=torch.randn(shape, generator=generator), returns=torch.rand(shape, generator=generator)
    )


def token_mean_loss(batch: Batch, outputs: TokenOutputs, totals: BatchTotals) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean over all tokens of -advantage * logprob, minus a little entropy where it is there."""
    assert batch.advantages is not None
    losses = -batch.advantages * outputs.logprobs
    if outputs.entropy is not None:
        losses = losses - 0.1 * outputs.entropy
    loss = (losses * batch.response_mask).sum() / max(1, totals.num_tokens)
    return loss, {"loss": loss}


def sequence_mean_loss(batch: Batch, outputs: TokenOutputs, totals: BatchTotals) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean over sequences of the mean over each one's tokens."""
    assert batch.advantages is not None
    losses = -batch.advantages * outputs.logprobs * batch.response_mask
    per_sequence = losses.sum(1) / batch.response_mask.sum(1).clamp(min=1)
    loss = per_sequence.sum() / max(1, totals.num_sequences)
    return loss, {"loss": loss}


def value_mean_loss(batch: Batch, values: Tensor, totals: BatchTotals) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean squared distance to the returns."""
    assert batch.returns is not None
    loss = ((values - batch.returns).square() * batch.response_mask).sum() / max(1, totals.num_tokens)
    return loss, {"loss": loss}
