"""The schedule of a handover: which rank sends which part of which weight to whom, in buckets of bounded size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from rl_compat.resharding.layout import Box, Placement, WeightLayout, WeightSpec, intersection, num_elements

ALIGNMENT = 16
"bytes: every part begins at a multiple in a buffer, so that it can be viewed in any dtype"
_ALWAYS_GATHERED = 2**16
"bytes of a part whose padding in a gather costs less than a message of its own"


@dataclass(frozen=True, slots=True)
class Move:
    """A part of a weight that one rank sends to others, or copies to its own target if that is the only one."""

    weight: str
    source: int
    targets: tuple[int, ...]
    "ascending"
    box: Box
    buffer_bytes: int
    "its bytes in a buffer, padding included"


@dataclass(frozen=True, slots=True)
class Bucket:
    """Moves that are carried out together."""

    moves: tuple[Move, ...]
    "between ranks"
    copies: tuple[Move, ...]
    "of what a rank already has"
    groups: tuple[tuple[int, ...], ...] = ()
    "groups of ranks, each of which is one gather: a rank gets what all others of its group send; else point to point"

    def group_of(self, rank: int) -> tuple[int, ...] | None:
        """The gather that a rank takes part in."""
        return next((group for group in self.groups if rank in group), None)

    @property
    def gathered_bytes(self) -> int:
        """The bytes that each rank of a gather contributes."""
        return max(_sent_bytes(self.moves).values(), default=0)

    def messages(self, rank: int) -> dict[tuple[int, tuple[int, ...]], list[Move]]:
        """The moves that a rank sends or receives, by source and targets, in the same order on every rank."""
        found: dict[tuple[int, tuple[int, ...]], list[Move]] = {}
        for move in self.moves:
            if rank == move.source or rank in move.targets:
                found.setdefault((move.source, move.targets), []).append(move)
        return dict(sorted(found.items()))

    def buffer_bytes(self, rank: int) -> int:
        """The size of the buffer that a rank needs."""
        if self.groups:
            group = self.group_of(rank)
            return 0 if group is None else len(group) * self.gathered_bytes
        return sum(move.buffer_bytes for moves in self.messages(rank).values() for move in moves)


@dataclass(slots=True)
class _Filling:
    """The bucket that is being filled, and those before it."""

    bucket_bytes: int
    done: list[Bucket] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    copies: list[Move] = field(default_factory=list)
    groups: tuple[tuple[int, ...], ...] = ()
    load: Counter[int] = field(default_factory=Counter)
    "bytes by rank: contributed to a gather, or sent and received"
    copied: Counter[int] = field(default_factory=Counter)
    "bytes by rank"

    def add(self, moves: Sequence[Move], groups: tuple[tuple[int, ...], ...]) -> None:
        """Add moves to this bucket, or to a new one if they do not fit or are of another kind."""
        more = _sent_bytes(moves) if groups else _moved_bytes(moves)
        most = self.bucket_bytes // max(map(len, groups), default=1)
        if self.moves and (groups != self.groups or any(self.load[rank] + more[rank] > most for rank in more)):
            self.close()
        self.groups = groups
        self.moves += moves
        self.load += more

    def copy(self, move: Move) -> None:
        """Add a copy to this bucket, or to a new one if a rank would copy more than a bucket."""
        if self.copied[move.source] + move.buffer_bytes > self.bucket_bytes:
            self.close()
        self.copies.append(move)
        self.copied[move.source] += move.buffer_bytes

    def close(self) -> None:
        if self.moves or self.copies:
            self.done.append(Bucket(tuple(self.moves), tuple(self.copies), self.groups))
        self.moves, self.copies, self.groups = [], [], ()
        self.load, self.copied = Counter(), Counter()


def schedule(
    weights: Sequence[WeightSpec], source: WeightLayout, target: WeightLayout, *, bucket_bytes: int
) -> tuple[Bucket, ...]:
    """Bring every target rank its part of every weight, in the order of the weights.

    An element reaches a rank once, and never from another rank if it has the element itself. No rank needs a buffer of
    more than `bucket_bytes`. Ranks that hold the same part share the sending.
    """
    filling = _Filling(bucket_bytes)
    sent: Counter[int] = Counter()
    known: dict[object, list[list[_Need]]] = {}
    for weight in weights:
        places = source[weight.name], target[weight.name]
        alike = (weight.shape, weight.itemsize, *places)
        if alike not in known:
            known[alike] = _needs_in_rounds(weight, *places, bucket_bytes)
        for needs in known[alike]:
            moves: list[Move] = []
            for need in needs:
                for rank in need.owners:
                    filling.copy(Move(weight.name, rank, (rank,), need.box, need.buffer_bytes))
                moves += [Move(weight.name, *way, need.box, need.buffer_bytes) for way in _ways(need, sent)]
            groups = _gather_groups(moves, bucket_bytes)
            for together in [moves] if groups else [[move] for move in moves]:
                if together:
                    filling.add(together, groups)
    filling.close()
    return tuple(filling.done)


def aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class _Need:
    """A part of a weight that all its holders can give."""

    box: Box
    holders: tuple[int, ...]
    owners: tuple[int, ...]
    "holders that need it too"
    others: tuple[int, ...]
    "ranks that need it and do not hold it"
    buffer_bytes: int


def _needs_in_rounds(weight: WeightSpec, source: Placement, target: Placement, bucket_bytes: int) -> list[list[_Need]]:
    """What the target ranks need, in pieces: a round has one piece from each holder and fits in a bucket."""
    wanted: dict[Box, tuple[tuple[int, ...], set[int]]] = {}
    parts = target.holders(weight.shape)
    for held, holders in source.holders(weight.shape).items():
        for part, targets in parts.items():
            shared = intersection(held, part)
            if shared is not None:
                wanted.setdefault(shared, (holders, set()))[1].update(targets)
    touches = Counter(rank for holders, targets in wanted.values() for rank in targets.union(holders))
    limit = bucket_bytes // max(touches.values(), default=1) // ALIGNMENT * ALIGNMENT
    assert limit >= max(ALIGNMENT, weight.itemsize), f"a bucket of {bucket_bytes} bytes is too small"
    pieces = []
    for part, (holders, ranks) in wanted.items():
        owners, others = ranks.intersection(holders), ranks.difference(holders)
        boxes = _pieces(part, weight.itemsize, limit)
        split = holders, tuple(sorted(owners)), tuple(sorted(others))
        pieces.append([_Need(box, *split, aligned(num_elements(box) * weight.itemsize)) for box in boxes])
    return [[need for need in needs if need is not None] for needs in zip_longest(*pieces)]


def _pieces(box: Box, itemsize: int, limit: int) -> Iterator[Box]:
    """A part in pieces of at most `limit` bytes, cut along the first dimensions."""
    num_bytes = num_elements(box) * itemsize
    if num_bytes <= limit:
        yield box
        return
    dim = next(dim for dim, (start, stop) in enumerate(box) if stop - start > 1)
    start, stop = box[dim]
    step = max(1, limit * (stop - start) // num_bytes)
    for first in range(start, stop, step):
        yield from _pieces((*box[:dim], (first, min(first + step, stop)), *box[dim + 1 :]), itemsize, limit)


def _ways(need: _Need, sent: Counter[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Who sends a piece to whom: near ranks to near ranks, the odd ones out from those that have sent least."""
    each, odd = divmod(len(need.others), len(need.holders))
    more = sorted(need.holders, key=lambda rank: (sent[rank], rank))[:odd]
    start = 0
    for holder in need.holders:
        stop = start + each + (holder in more)
        if stop > start:
            sent[holder] += need.buffer_bytes * (stop - start)
            yield holder, need.others[start:stop]
        start = stop


def _gather_groups(moves: Sequence[Move], bucket_bytes: int) -> tuple[tuple[int, ...], ...]:
    """The groups of ranks if in each of them every rank gets what all others send, without much padding; else none."""
    groups = {tuple(sorted({move.source, *move.targets})) for move in moves}
    ranks = [rank for group in groups for rank in group]
    if not groups or len(ranks) > len(set(ranks)) or len({len(group) for group in groups}) > 1:
        return ()
    sent = _sent_bytes(moves)
    largest, size = max(sent.values()), len(next(iter(groups)))
    even = all(size * largest <= 2 * sum(sent[rank] for rank in group) for group in groups)
    fits = size * largest <= bucket_bytes
    return tuple(sorted(groups)) if fits and (even or largest <= _ALWAYS_GATHERED) else ()


def _sent_bytes(moves: Sequence[Move]) -> Counter[int]:
    """Bytes by source, a move to several targets once."""
    sent: Counter[int] = Counter()
    for move in moves:
        sent[move.source] += move.buffer_bytes
    return sent


def _moved_bytes(moves: Sequence[Move]) -> Counter[int]:
    """Bytes by rank that it sends, a move to several targets once, or receives."""
    moved = _sent_bytes(moves)
    for move in moves:
        for rank in move.targets:
            moved[rank] += move.buffer_bytes
    return moved
