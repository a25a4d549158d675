"""A mini-batch in pieces that fit: which rows go together, and their token matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from rl_compat.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchLimits:
    max_rows: int
    max_tokens: int | None = None
    "padding included; None is no cap"

    def halved(self, rows: int, tokens: int) -> MicroBatchLimits:
        """Limits under half of a micro-batch of `rows` rows and `tokens` tokens that did not fit."""
        return MicroBatchLimits(
            max_rows=max(1, min(self.max_rows, rows // 2)), max_tokens=min(self.max_tokens or tokens, tokens // 2)
        )


def split_by_length(lengths: Sequence[int], limits: MicroBatchLimits) -> list[list[int]]:
    """Row numbers in micro-batches, longest rows first; each row exactly once.

    A micro-batch's tokens are its rows times its longest row. A row over the token limit goes alone.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    pieces: list[list[int]] = []
    for row in order:
        current = pieces[-1] if pieces else None
        if current is not None and _has_room(len(current) + 1, lengths[current[0]], limits):
            current.append(row)
        else:
            pieces.append([row])
    return pieces


def _has_room(rows: int, longest: int, limits: MicroBatchLimits) -> bool:
    return rows <= limits.max_rows and (limits.max_tokens is None or rows * longest <= limits.max_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMatrix:
    """Prompt and response of B rows side by side, padded on the right, with where the response tokens are in it."""

    input_ids: Tensor
    "[B, L] int64"
    predictors: Tensor
    "[N] positions in the flattened [B * L] whose next token is a response token"
    targets: Tensor
    "[N] that response token's id"
    slots: Tensor
    "[N] its position in the flattened [B * T]"
    shape: tuple[int, int]
    "(B, T)"

    @classmethod
    def from_batch(cls, batch: Batch, *, device: str) -> TokenMatrix:
        """Built on the CPU, then moved. Every row needs a prompt: its last token predicts the first of the response."""
        lengths = batch.sequence_lengths()
        input_ids = torch.zeros(len(batch), max(lengths), dtype=torch.int64)
        predictors, slots = [], []
        for row, prompt in enumerate(batch.prompt_ids):
            assert prompt, "a prompt is empty"
            start, n = len(prompt), int(batch.response_lengths[row])
            input_ids[row, :start] = torch.tensor(prompt, dtype=torch.int64)
            input_ids[row, start : start + n] = batch.response_ids[row, :n]
            predictors.append(torch.arange(start - 1, start - 1 + n) + row * input_ids.shape[1])
            slots.append(torch.arange(n) + row * batch.response_ids.shape[1])
        flat_slots = torch.cat(slots)
        return cls(
            input_ids=input_ids.to(device),
            predictors=torch.cat(predictors).to(device),
            targets=batch.response_ids.reshape(-1)[flat_slots].to(device),
            slots=flat_slots.to(device),
            shape=(len(batch), batch.response_ids.shape[1]),
        )

    def at_predictors(self, per_position: Tensor) -> Tensor:
        """[B, L, ...] at the positions that predict response tokens, [N, ...]."""
        return per_position.flatten(0, 1).index_select(0, self.predictors)

    def to_columns(self, per_token: Tensor) -> Tensor:
        """[N] as [B, T], 0 in the padding."""
        empty = per_token.new_zeros(self.shape[0] * self.shape[1])
        return empty.index_copy(0, self.slots, per_token).view(self.shape)


def on_device(batch: Batch, device: str) -> Batch:
    """The batch with its tensors on a device."""
    changes: dict[str, Any] = {}
    for item in fields(batch):
        value = getattr(batch, item.name)
        if isinstance(value, Tensor):
            changes[item.name] = value.to(device)
    return replace(batch, **changes)
