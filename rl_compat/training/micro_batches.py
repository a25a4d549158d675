"""Micro-batches: which rows of a mini-batch are computed together, and their token matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from rl_compat.algorithms.masking import length_mask
from rl_compat.batch import Batch

MicroBatches = list[list[int]]
"the row numbers of each micro-batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchLimits:
    max_rows: int
    max_tokens: int | None = None
    "including padding; None means unlimited"

    def halved(self, rows: int, tokens: int) -> MicroBatchLimits:
        """Half of a micro-batch of `rows` rows and `tokens` tokens, which did not fit."""
        return MicroBatchLimits(
            max_rows=max(1, min(self.max_rows, rows // 2)), max_tokens=min(self.max_tokens or tokens, tokens // 2)
        )


def lowest(limits: Sequence[MicroBatchLimits]) -> MicroBatchLimits:
    """The strictest of several limits."""
    tokens = [limit.max_tokens for limit in limits if limit.max_tokens is not None]
    return MicroBatchLimits(
        max_rows=min(limit.max_rows for limit in limits), max_tokens=min(tokens) if tokens else None
    )


def split_by_length(lengths: Sequence[int], limits: MicroBatchLimits) -> MicroBatches:
    """The row numbers of each micro-batch, longest rows first. Every row is in exactly one.

    A micro-batch has as many tokens as its rows times its longest row. A row over the token limit is alone in one.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    micro_batches: MicroBatches = []
    for row in order:
        current = micro_batches[-1] if micro_batches else None
        if current is not None and has_room(len(current) + 1, lengths[current[0]], limits):
            current.append(row)
        else:
            micro_batches.append([row])
    return micro_batches


def has_room(rows: int, longest: int, limits: MicroBatchLimits) -> bool:
    """Whether a micro-batch of this many rows, padded to the longest, is within the limits."""
    return rows <= limits.max_rows and (limits.max_tokens is None or rows * longest <= limits.max_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMatrix:
    """Prompts and responses of B rows, padded on the right, with the positions of the response tokens."""

    input_ids: Tensor
    "[B, L] int64"
    predictors: Tensor
    "[N] positions in the flattened [B * L] before each response token"
    targets: Tensor
    "[N] ids of the response tokens"
    slots: Tensor
    "[N] positions of the response tokens in the flattened [B * T]"
    shape: tuple[int, int]
    "(B, T)"
    position_ids: Tensor | None = None
    "[packs, L] where rows share packs: counted from 0 in each row, which separates the rows in attention"

    @classmethod
    def from_batch(cls, batch: Batch, *, device: str, places: Sequence[tuple[int, int]] | None = None) -> TokenMatrix:
        """Built on the CPU, then moved to `device`. No prompt may be empty.

        `places` are the pack and first column of each row; by default each row is its own pack.
        """
        num_prompt = torch.tensor([len(prompt) for prompt in batch.prompt_ids])
        assert bool((num_prompt > 0).all()), "a prompt is empty"
        lengths = num_prompt + batch.response_lengths
        places = [(row, 0) for row in range(len(batch))] if places is None else places
        pack, start = torch.tensor(places).unbind(1)
        width = int((start + lengths).max())
        offset = _counted(lengths)
        positions = (pack * width + start).repeat_interleave(lengths) + offset
        is_response = offset >= num_prompt.repeat_interleave(lengths)
        in_batch = length_mask(batch.response_lengths, batch.response_ids.shape[1])
        targets = batch.response_ids[in_batch]
        tokens = torch.empty(len(positions), dtype=torch.int64)
        tokens[~is_response] = torch.tensor([token_id for prompt in batch.prompt_ids for token_id in prompt])
        tokens[is_response] = targets
        num_packs = int(pack.max()) + 1
        input_ids = torch.zeros(num_packs * width, dtype=torch.int64).index_copy(0, positions, tokens)
        return cls(
            input_ids=input_ids.view(num_packs, width).to(device),
            predictors=(positions[is_response] - 1).to(device),
            targets=targets.to(device),
            slots=in_batch.flatten().nonzero().flatten().to(device),
            shape=(len(batch), batch.response_ids.shape[1]),
            position_ids=None if num_packs == len(batch) else _from_zero(pack, start, lengths, width).to(device),
        )

    def at_predictors(self, per_position: Tensor) -> Tensor:
        """The entries of [B, L, ...] that predict response tokens, [N, ...]."""
        return per_position.flatten(0, 1).index_select(0, self.predictors)

    def to_columns(self, per_token: Tensor) -> Tensor:
        """Values [N] of the response tokens as [B, T], 0 in the padding."""
        empty = per_token.new_zeros(self.shape[0] * self.shape[1])
        return empty.index_copy(0, self.slots, per_token).view(self.shape)


def _counted(lengths: Tensor) -> Tensor:
    """0, 1, 2 … for each length, concatenated."""
    ends = lengths.cumsum(0)
    return torch.arange(int(ends[-1])) - (ends - lengths).repeat_interleave(lengths)


def _from_zero(pack: Tensor, start: Tensor, lengths: Tensor, width: int) -> Tensor:
    """The position of each token in its row, [packs, width]; padding counts as another row."""
    num_packs = int(pack.max()) + 1
    filled = torch.zeros(num_packs, dtype=torch.int64).scatter_reduce(0, pack, start + lengths, "amax")
    positions = torch.arange(width) - filled[:, None]
    places = (pack * width + start).repeat_interleave(lengths)
    offset = _counted(lengths)
    return positions.flatten().index_copy(0, places + offset, offset).view(num_packs, width)


def on_device(batch: Batch, device: str) -> Batch:
    """The batch with its tensors on a device."""
    changes: dict[str, Any] = {}
    for item in fields(batch):
        value = getattr(batch, item.name)
        if isinstance(value, Tensor):
            changes[item.name] = value.to(device)
    return replace(batch, **changes)


def filler() -> Batch:
    """A row of one prompt token and one response token with an empty mask, for a rank without rows."""
    return Batch(
        prompt_ids=((0,),),
        response_ids=torch.zeros(1, 1, dtype=torch.int64),
        response_mask=torch.zeros(1, 1, dtype=torch.bool),
        response_lengths=torch.ones(1, dtype=torch.int64),
        groups=torch.zeros(1, dtype=torch.int64),
        truncated=torch.zeros(1, dtype=torch.bool),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """By default each row is its own pack and may share a micro-batch with any other row."""

    whole_groups: bool = False
    "all rows of a group are in one micro-batch, even if they exceed its limits"
    pack_tokens: int | None = None
    "short rows share packs of this many tokens without attending to each other; a longer row has a longer pack"

    def split(self, lengths: Sequence[int], limits: MicroBatchLimits, *, groups: Sequence[int]) -> MicroBatches:
        """The row numbers of each micro-batch. Every row is in exactly one."""
        if self.pack_tokens is not None:
            return _split_packs(lengths, limits, self._width(limits))
        if self.whole_groups:
            return _split_groups(lengths, limits, groups)
        return split_by_length(lengths, limits)

    def num_tokens(self, lengths: Sequence[int], limits: MicroBatchLimits) -> int:
        """Tokens of a micro-batch of rows with these lengths, padding included."""
        if self.pack_tokens is None:
            return len(lengths) * max(lengths)
        ends = ends_of_packs(self.places(lengths, limits), lengths)
        return len(ends) * max(ends)

    def places(self, lengths: Sequence[int], limits: MicroBatchLimits) -> list[tuple[int, int]]:
        """The pack of each row of a micro-batch, and the column where the row begins."""
        if self.pack_tokens is None:
            return [(row, 0) for row in range(len(lengths))]
        return fill_packs(lengths, self._width(limits))

    def _width(self, limits: MicroBatchLimits) -> int:
        assert self.pack_tokens is not None
        return min(self.pack_tokens, limits.max_tokens or self.pack_tokens)


def fill_packs(lengths: Sequence[int], width: int) -> list[tuple[int, int]]:
    """Pack and first column of each row, in order. A row that would exceed the width begins a new pack."""
    places, pack, column = [], 0, 0
    for length in lengths:
        if column and column + length > width:
            pack, column = pack + 1, 0
        places.append((pack, column))
        column += length
    return places


def _split_packs(lengths: Sequence[int], limits: MicroBatchLimits, width: int) -> MicroBatches:
    """Packs filled with the longest row that still fits (first fit decreasing), as many per micro-batch as fit.

    `fill_packs` over a micro-batch gives the same packs again: the first row of a pack did not fit into the one before.
    """
    packs: MicroBatches = []
    used: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        pack = next((i for i, tokens in enumerate(used) if tokens + lengths[row] <= width), None)
        if pack is None:
            pack = len(packs)
            packs.append([])
            used.append(0)
        packs[pack].append(row)
        used[pack] += lengths[row]
    micro_batches: list[MicroBatches] = []
    widest = width
    for rows, tokens in zip(packs, used, strict=True):
        if micro_batches and tokens <= widest and has_room(len(micro_batches[-1]) + 1, widest, limits):
            micro_batches[-1].append(rows)
        else:
            micro_batches.append([rows])
            widest = max(width, tokens)
    return [[row for rows in micro_batch for row in rows] for micro_batch in micro_batches]


def _split_groups(lengths: Sequence[int], limits: MicroBatchLimits, groups: Sequence[int]) -> MicroBatches:
    """Whole groups, those with the longest row first. A group over the limits has its own micro-batch."""
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    longest = {group: max(lengths[row] for row in rows) for group, rows in members.items()}
    micro_batches: MicroBatches = []
    width = 0
    for group in sorted(members, key=lambda group: (-longest[group], group)):
        if micro_batches and has_room(len(micro_batches[-1]) + len(members[group]), width, limits):
            micro_batches[-1] += members[group]
        else:
            micro_batches.append(members[group])
            width = longest[group]
    return micro_batches


def ends_of_packs(places: Sequence[tuple[int, int]], lengths: Sequence[int]) -> list[int]:
    """The number of tokens in each pack."""
    ends = [0] * (places[-1][0] + 1)
    for (pack, start), length in zip(places, lengths, strict=True):
        ends[pack] = start + length
    return ends
