"""A mini-batch in pieces that fit: which rows go together, and their token matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from rl_compat.algorithms.masking import length_mask
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
        if current is not None and has_room(len(current) + 1, lengths[current[0]], limits):
            current.append(row)
        else:
            pieces.append([row])
    return pieces


def has_room(rows: int, longest: int, limits: MicroBatchLimits) -> bool:
    """Whether a micro-batch of so many rows, padded to the longest, keeps the limits."""
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
    position_ids: Tensor | None = None
    "[lines, L] where rows share lines: counted from 0 in each, so that attention tells them apart"

    @classmethod
    def from_batch(cls, batch: Batch, *, device: str, places: Sequence[tuple[int, int]] | None = None) -> TokenMatrix:
        """Built on the CPU, then moved. Every row needs a prompt: its last token predicts the first of the response.

        `places` are line and first column of each row; without them each row has a line of its own.
        """
        num_prompt = torch.tensor([len(prompt) for prompt in batch.prompt_ids])
        assert bool((num_prompt > 0).all()), "a prompt is empty"
        lengths = num_prompt + batch.response_lengths
        places = [(row, 0) for row in range(len(batch))] if places is None else places
        line, start = torch.tensor(places).unbind(1)
        width = int((start + lengths).max())
        offset = _counted(lengths)
        positions = (line * width + start).repeat_interleave(lengths) + offset
        is_response = offset >= num_prompt.repeat_interleave(lengths)
        in_batch = length_mask(batch.response_lengths, batch.response_ids.shape[1])
        targets = batch.response_ids[in_batch]
        tokens = torch.empty(len(positions), dtype=torch.int64)
        tokens[~is_response] = torch.tensor([token_id for prompt in batch.prompt_ids for token_id in prompt])
        tokens[is_response] = targets
        num_lines = int(line.max()) + 1
        input_ids = torch.zeros(num_lines * width, dtype=torch.int64).index_copy(0, positions, tokens)
        return cls(
            input_ids=input_ids.view(num_lines, width).to(device),
            predictors=(positions[is_response] - 1).to(device),
            targets=targets.to(device),
            slots=in_batch.flatten().nonzero().flatten().to(device),
            shape=(len(batch), batch.response_ids.shape[1]),
            position_ids=None if num_lines == len(batch) else _from_zero(line, start, lengths, width).to(device),
        )

    def at_predictors(self, per_position: Tensor) -> Tensor:
        """[B, L, ...] at the positions that predict response tokens, [N, ...]."""
        return per_position.flatten(0, 1).index_select(0, self.predictors)

    def to_columns(self, per_token: Tensor) -> Tensor:
        """[N] as [B, T], 0 in the padding."""
        empty = per_token.new_zeros(self.shape[0] * self.shape[1])
        return empty.index_copy(0, self.slots, per_token).view(self.shape)


def _counted(lengths: Tensor) -> Tensor:
    """0, 1, 2 … for each length, one after the other."""
    ends = lengths.cumsum(0)
    return torch.arange(int(ends[-1])) - (ends - lengths).repeat_interleave(lengths)


def _from_zero(line: Tensor, start: Tensor, lengths: Tensor, width: int) -> Tensor:
    """[lines, width]: each token's position in its row, and those of the padding as if it were another row."""
    num_lines = int(line.max()) + 1
    filled = torch.zeros(num_lines, dtype=torch.int64).scatter_reduce(0, line, start + lengths, "amax")
    positions = torch.arange(width) - filled[:, None]
    places = (line * width + start).repeat_interleave(lengths)
    offset = _counted(lengths)
    return positions.flatten().index_copy(0, places + offset, offset).view(num_lines, width)


def on_device(batch: Batch, device: str) -> Batch:
    """The batch with its tensors on a device."""
    changes: dict[str, Any] = {}
    for item in fields(batch):
        value = getattr(batch, item.name)
        if isinstance(value, Tensor):
            changes[item.name] = value.to(device)
    return replace(batch, **changes)
