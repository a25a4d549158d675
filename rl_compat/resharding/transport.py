"""Carries out a schedule among the ranks of a process group: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from rl_compat.resharding.handover import PhaseClock
from rl_compat.resharding.layout import Box
from rl_compat.resharding.schedule import Bucket, Move


@dataclass(frozen=True, slots=True)
class HeldPart:
    """A part of a weight in the memory of this rank."""

    tensor: Tensor
    box: Box

    def view(self, box: Box) -> Tensor:
        """A part of this part."""
        inside = zip(box, self.box, strict=True)
        return self.tensor[tuple(slice(start - first, stop - first) for (start, stop), (first, _) in inside)]


class ProcessGroups:
    """The process groups of sets of ranks, each made once. All ranks of a set use it for the first time together."""

    def __init__(self, everyone: dist.ProcessGroup | None = None, known: Sequence[dist.ProcessGroup] = ()) -> None:
        """`everyone` has all ranks of a handover, None is the default group; `known` are some of its parts."""
        self.everyone = everyone or dist.group.WORLD
        assert self.everyone is not None
        self.ranks = tuple(dist.get_process_group_ranks(self.everyone))
        self._groups = {tuple(sorted(dist.get_process_group_ranks(group))): group for group in known}
        self._groups[tuple(sorted(self.ranks))] = self.everyone

    def __getitem__(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        """The group of these ranks, ascending, one of which is this process."""
        if ranks not in self._groups:
            made = dist.new_group(list(ranks), use_local_synchronization=True)
            assert isinstance(made, dist.ProcessGroup)
            self._groups[ranks] = made
        return self._groups[ranks]


class BucketTransport:
    """Carries out the buckets of a schedule one after the other, through one buffer."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        *,
        rank: int,
        groups: ProcessGroups | None,
        dtypes: Mapping[str, torch.dtype],
        device: torch.device,
    ) -> None:
        """`dtypes` are those in which the weights are moved. One rank without others needs no groups."""
        self.clock = PhaseClock(device)
        self.buffer_bytes = max((bucket.buffer_bytes(rank) for bucket in buckets), default=0)
        self.received_bytes = 0
        self.written_bytes = 0
        self.peak_bytes = 0
        "of whole weights that existed at a time, where they are not the rollout's own"
        self._bytes = 0
        self._rank = rank
        self._groups = groups
        self._dtypes = dtypes
        self._buffer = torch.empty(self.buffer_bytes, dtype=torch.uint8, device=device)

    def empty(self, name: str, shape: Sequence[int]) -> Tensor:
        """Memory for a whole weight, until `free`."""
        weight = torch.empty(*shape, dtype=self._dtypes[name], device=self._buffer.device)
        self._bytes += weight.nbytes
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        return weight

    def free(self, weight: Tensor) -> None:
        self._bytes -= weight.nbytes

    @torch.no_grad()
    def carry(self, bucket: Bucket, sources: Mapping[str, HeldPart], targets: Mapping[str, HeldPart]) -> None:
        """Move a bucket from the parts that this rank has to those that it needs, in the dtype of the targets."""
        if bucket.group_of(self._rank) is not None:
            self._gather(bucket, sources, targets)
        elif not bucket.groups:
            self._exchange(bucket, sources, targets)
        with self.clock("write"):
            for move in bucket.copies:
                if move.source == self._rank:
                    self._write(move, sources[move.weight].view(move.box), targets)

    def _gather(self, bucket: Bucket, sources: Mapping[str, HeldPart], targets: Mapping[str, HeldPart]) -> None:
        """One collective: every rank of the group packs what it sends at its place in the buffer."""
        group = bucket.group_of(self._rank)
        assert group is not None and self._groups is not None
        process_group = self._groups[group]
        size = bucket.gathered_bytes
        starts = Counter({rank: n * size for n, rank in enumerate(dist.get_process_group_ranks(process_group))})
        place = starts[self._rank]
        slots: list[tuple[Move, Tensor]] = []
        for move in bucket.moves:
            if move.source in starts:
                slots.append((move, self._slot(move, starts[move.source])))
                starts[move.source] += move.buffer_bytes
        with self.clock("convert"):
            for move, slot in slots:
                if move.source == self._rank:
                    slot.copy_(sources[move.weight].view(move.box))
        with self.clock("gather"):
            _all_gather(self._buffer[: len(group) * size], place, size, process_group)
        self._write_received(slots, targets)

    def _exchange(self, bucket: Bucket, sources: Mapping[str, HeldPart], targets: Mapping[str, HeldPart]) -> None:
        """Point to point: one message for all that a rank sends to the same ranks."""
        start = 0
        slots: list[tuple[Move, Tensor]] = []
        messages: list[tuple[int, tuple[int, ...], Tensor]] = []
        for (source, receivers), moves in bucket.messages(self._rank).items():
            first = start
            for move in moves:
                slots.append((move, self._slot(move, start)))
                start += move.buffer_bytes
            messages.append((source, receivers, self._buffer[first:start]))
        if not messages:
            return
        assert self._groups is not None
        everyone = self._groups.everyone
        with self.clock("convert"):
            for move, slot in slots:
                if move.source == self._rank:
                    slot.copy_(sources[move.weight].view(move.box))
        with self.clock("gather"):
            calls: list[dist.P2POp] = []
            for source, receivers, message in messages:
                if source == self._rank:
                    calls += [dist.P2POp(dist.isend, message, rank, everyone) for rank in receivers]
                else:
                    calls.append(dist.P2POp(dist.irecv, message, source, everyone))
            for call in dist.batch_isend_irecv(calls):
                call.wait()
        self._write_received(slots, targets)

    def _write_received(self, slots: Sequence[tuple[Move, Tensor]], targets: Mapping[str, HeldPart]) -> None:
        with self.clock("write"):
            for move, slot in slots:
                if self._rank in move.targets:
                    self._write(move, slot, targets)
                    self.received_bytes += slot.nbytes

    def _write(self, move: Move, values: Tensor, targets: Mapping[str, HeldPart]) -> None:
        target = targets[move.weight].view(move.box)
        target.copy_(values)
        self.written_bytes += target.nbytes

    def _slot(self, move: Move, start: int) -> Tensor:
        """The place of a part in the buffer."""
        dtype, shape = self._dtypes[move.weight], [stop - first for first, stop in move.box]
        return self._buffer[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


def _all_gather(gathered: Tensor, place: int, size: int, group: dist.ProcessGroup) -> None:
    """Fill the buffer with the parts of all ranks; this rank's part is at its place already.

    gloo's own gather allocates a second buffer, so its ranks exchange messages instead.
    """
    own = gathered[place : place + size]
    if gathered.is_cuda:
        dist.all_gather_into_tensor(gathered, own, group=group)
        return
    calls: list[dist.P2POp] = []
    for number, rank in enumerate(dist.get_process_group_ranks(group)):
        if rank != dist.get_rank():
            calls.append(dist.P2POp(dist.irecv, gathered[number * size : (number + 1) * size], rank, group))
            calls.append(dist.P2POp(dist.isend, own, rank, group))
    for call in dist.batch_isend_irecv(calls):
        call.wait()
