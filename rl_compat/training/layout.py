"""Layouts: which rows of a batch share a micro-batch, and which share a row of its token matrix (packing)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl_compat.training.micro_batches import MicroBatches, MicroBatchLimits, has_room, split_by_length


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
