"""Which rows of a batch are computed together: in a micro-batch, and in one line of its token matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl_compat.training.micro_batches import MicroBatchLimits, has_room, split_by_length

Pieces = list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """By default a row has a line of its own and may be computed beside any other."""

    whole_groups: bool = False
    "rows of one group are computed together, however many they are"
    line_tokens: int | None = None
    "short rows share lines of so many tokens, each blind to the others; a longer row has a longer line"

    def split(self, lengths: Sequence[int], limits: MicroBatchLimits, *, groups: Sequence[int]) -> Pieces:
        """Row numbers in micro-batches, each row exactly once."""
        if self.line_tokens is not None:
            return _split_lines(lengths, limits, self._width(limits))
        if self.whole_groups:
            return _split_groups(lengths, limits, groups)
        return split_by_length(lengths, limits)

    def num_tokens(self, lengths: Sequence[int], limits: MicroBatchLimits) -> int:
        """Tokens of a micro-batch of rows with these lengths, padding included."""
        if self.line_tokens is None:
            return len(lengths) * max(lengths)
        ends = ends_of_lines(self.places(lengths, limits), lengths)
        return len(ends) * max(ends)

    def places(self, lengths: Sequence[int], limits: MicroBatchLimits) -> list[tuple[int, int]]:
        """For each row of a micro-batch its line, and the column where it begins."""
        if self.line_tokens is None:
            return [(row, 0) for row in range(len(lengths))]
        return share_lines(lengths, self._width(limits))

    def _width(self, limits: MicroBatchLimits) -> int:
        assert self.line_tokens is not None
        return min(self.line_tokens, limits.max_tokens or self.line_tokens)


def share_lines(lengths: Sequence[int], width: int) -> list[tuple[int, int]]:
    """Rows put one behind the other in their order; a line begins where the next one would pass the width."""
    places, line, column = [], 0, 0
    for length in lengths:
        if column and column + length > width:
            line, column = line + 1, 0
        places.append((line, column))
        column += length
    return places


def _split_lines(lengths: Sequence[int], limits: MicroBatchLimits, width: int) -> Pieces:
    """Lines filled by the longest row that still fits (first fit decreasing), as many in a piece as the limits allow.

    `share_lines` over a piece gives the same lines again: a line's first row did not fit into the line before.
    """
    lines: Pieces = []
    used: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        line = next((i for i, tokens in enumerate(used) if tokens + lengths[row] <= width), None)
        if line is None:
            line = len(lines)
            lines.append([])
            used.append(0)
        lines[line].append(row)
        used[line] += lengths[row]
    pieces: list[Pieces] = []
    widest = width
    for rows, tokens in zip(lines, used, strict=True):
        if pieces and tokens <= widest and has_room(len(pieces[-1]) + 1, widest, limits):
            pieces[-1].append(rows)
        else:
            pieces.append([rows])
            widest = max(width, tokens)
    return [[row for rows in piece for row in rows] for piece in pieces]


def _split_groups(lengths: Sequence[int], limits: MicroBatchLimits, groups: Sequence[int]) -> Pieces:
    """Whole groups, those with the longest row first; a group over the limits goes alone."""
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    longest = {group: max(lengths[row] for row in rows) for group, rows in members.items()}
    pieces: Pieces = []
    width = 0
    for group in sorted(members, key=lambda group: (-longest[group], group)):
        if pieces and has_room(len(pieces[-1]) + len(members[group]), width, limits):
            pieces[-1] += members[group]
        else:
            pieces.append(members[group])
            width = longest[group]
    return pieces


def ends_of_lines(places: Sequence[tuple[int, int]], lengths: Sequence[int]) -> list[int]:
    """How many tokens each line has."""
    ends = [0] * (places[-1][0] + 1)
    for (line, start), length in zip(places, lengths, strict=True):
        ends[line] = start + length
    return ends
