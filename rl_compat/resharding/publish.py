"""Weights from one pool to another through a store: what changed since the last version, with a checksum of all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_compat.errors import ModelError
from rl_compat.resharding.checksum import checksum
from rl_compat.resharding.handover import Handover, PhaseClock
from rl_compat.resharding.layout import Box, RankMesh, WeightSpec, num_elements, whole
from rl_compat.resharding.schedule import Move, aligned, schedule
from rl_compat.resharding.sharded import BUCKET_BYTES, ShardedSource
from rl_compat.resharding.source import Weight, check_weights
from rl_compat.resharding.store import WeightStore
from rl_compat.resharding.transport import HeldPart

_STORE = -1
"stands for the store among the ranks of a layout"
_INDEX_BYTES = 4
_LARGEST_CHAIN = 0.5
"bytes of changes, as a fraction of all weights, after which a whole version is published"


@dataclass(frozen=True, slots=True)
class PublishedPart:
    """A part of a weight in a published bucket: all of it, or the changed elements and their places in the part."""

    weight: str
    box: Box
    start: int
    "first byte in the bucket"
    num_changed: int | None
    "None if the bucket has the whole part"


@dataclass(frozen=True, slots=True)
class PublishedBucket:
    """Bytes in the store."""

    key: object
    num_bytes: int
    parts: tuple[PublishedPart, ...]


@dataclass(frozen=True, slots=True)
class Publication:
    """What one rank has published of one version."""

    version: int
    base: int | None
    "the version that it changes; None if it is whole"
    buckets: tuple[PublishedBucket, ...]
    checksum: int
    "of what the rank publishes, at this version"

    @property
    def num_bytes(self) -> int:
        return sum(bucket.num_bytes for bucket in self.buckets)


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """A version of the policy in a store. It can be pickled."""

    version: int
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    chains: tuple[tuple[Publication, ...], ...]
    "by rank: its last whole version and the changes since then"

    @property
    def checksum(self) -> int:
        return sum(chain[-1].checksum for chain in self.chains) % 2**64


class WeightPublisher:
    """Publishes the share of one rank: ranks that hold the same part of a weight publish different pieces of it."""

    def __init__(
        self,
        source: ShardedSource,
        store: WeightStore,
        *,
        dtypes: Mapping[str, torch.dtype],
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """`dtypes` are those of the rollout. The last published values are kept in host memory to find changes."""
        self._source = source
        self._store = store
        self._dtypes = dtypes
        self._bucket_bytes = bucket_bytes
        self._last: dict[tuple[str, Box], Tensor] = {}
        self._frozen: dict[tuple[str, Box], int] = {}
        "checksums of parts that never change"
        self._chain: list[Publication] = []
        self._outdated: list[Publication] = []
        self._moves: list[list[Move]] | None = None

    def publish(self, *, version: int) -> PublishedWeights:
        """Publish the current weights as a version of the policy; `joined` joins what all ranks return."""
        self._drop(self._outdated)
        self._outdated = []
        source = self._source
        with source.resident():
            shapes, parts = source.shapes(), source.parts()
            full_bytes = sum(math.prod(shape) * self._dtypes[name].itemsize for name, shape in shapes.items())
            buckets = self._own_moves(shapes)
            changed_bytes = sum(publication.num_bytes for publication in self._chain[1:])
            starts_anew = not self._chain or changed_bytes > _LARGEST_CHAIN * full_bytes
            if starts_anew:
                self._outdated, self._chain = self._chain, []
            total, published = 0, []
            for moves in buckets:
                packed, summed = self._packed(moves, parts, shapes, whole_parts=starts_anew)
                total += summed
                if packed is not None:
                    published.append(packed)
        base = self._chain[-1].version if self._chain else None
        self._chain.append(Publication(version, base, tuple(published), total % 2**64))
        dtypes = {name: str(dtype).removeprefix("torch.") for name, dtype in self._dtypes.items()}
        return PublishedWeights(version, shapes, dtypes, (tuple(self._chain),))

    def close(self) -> None:
        """Remove everything from the store."""
        self._drop([*self._outdated, *self._chain])
        self._outdated, self._chain = [], []
        self._last, self._frozen = {}, {}

    def _own_moves(self, shapes: Mapping[str, tuple[int, ...]]) -> list[list[Move]]:
        """What this rank publishes, by bucket."""
        if self._moves is None:
            specs = [WeightSpec(name, shape, self._dtypes[name].itemsize) for name, shape in shapes.items()]
            target = whole(shapes, RankMesh.line([_STORE]))
            buckets = schedule(specs, self._source.layout, target, bucket_bytes=self._bucket_bytes)
            own = [[move for move in bucket.moves if move.source == self._source.rank] for bucket in buckets]
            self._moves = [moves for moves in own if moves]
        return self._moves

    def _packed(
        self,
        moves: Sequence[Move],
        parts: Mapping[str, HeldPart],
        shapes: Mapping[str, tuple[int, ...]],
        *,
        whole_parts: bool,
    ) -> tuple[PublishedBucket | None, int]:
        """A bucket in the store, None if nothing in it changed, and the checksum of its weights."""
        total, start = 0, 0
        listed: list[PublishedPart] = []
        pieces: list[tuple[int, Tensor]] = []
        for move in moves:
            place = (move.weight, move.box)
            if not whole_parts and place in self._frozen:
                total += self._frozen[place]
                continue
            values = parts[move.weight].view(move.box).to(self._dtypes[move.weight])
            summed = checksum(values, name=move.weight, shape=shapes[move.weight], box=move.box)
            total += summed
            values = values.cpu().contiguous()
            bits = values.reshape(-1).view(torch.uint8).view(-1, values.dtype.itemsize)
            changed = None if whole_parts else (bits != self._last[place]).any(1).nonzero().flatten()
            if move.weight in self._source.trained:
                shares = values.untyped_storage().data_ptr() == parts[move.weight].tensor.untyped_storage().data_ptr()
                self._last[place] = bits.clone() if shares else bits
            else:
                self._frozen[place] = summed
            if changed is not None and len(changed) == 0:
                continue
            if changed is None or len(changed) * (_INDEX_BYTES + values.dtype.itemsize) >= values.nbytes:
                listed.append(PublishedPart(move.weight, move.box, start, None))
                columns = [bits]
            else:
                listed.append(PublishedPart(move.weight, move.box, start, len(changed)))
                columns = [changed.to(torch.int32).view(torch.uint8), bits[changed]]
            for column in columns:
                pieces.append((start, column.reshape(-1)))
                start += aligned(column.numel())
        if not listed:
            return None, total
        data = torch.zeros(start, dtype=torch.uint8)
        for first, column in pieces:
            data[first : first + len(column)] = column
        return PublishedBucket(self._store.put(data), start, tuple(listed)), total

    def _drop(self, publications: Sequence[Publication]) -> None:
        self._store.drop([bucket.key for publication in publications for bucket in publication.buckets])


def joined(ranks: Sequence[PublishedWeights]) -> PublishedWeights:
    """What all ranks have published of one version."""
    first = ranks[0]
    assert {one.version for one in ranks} == {first.version}, "ranks publish one version together"
    chains = tuple(chain for one in ranks for chain in one.chains)
    return PublishedWeights(first.version, first.shapes, first.dtypes, chains)


class StoreSource:
    """The weights of a policy on another pool, as its ranks have published them."""

    def __init__(self, store: WeightStore) -> None:
        self.revision = 0
        self._store = store
        self._offered: PublishedWeights | None = None

    @property
    def version(self) -> int:
        return self._newest.version

    def offer(self, published: PublishedWeights) -> None:
        """Announce a version."""
        self._offered = published
        self.revision += 1

    def resident(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __iter__(self) -> Iterator[Weight]:
        """Whole weights on the CPU, all of which exist at the same time."""
        offered = self._newest
        weights = {
            name: torch.empty(shape, dtype=getattr(torch, offered.dtypes[name]))
            for name, shape in offered.shapes.items()
        }
        self.fill(weights)
        return (Weight(name, weight, offered.version) for name, weight in weights.items())

    @torch.no_grad()
    def fill(self, targets: Mapping[str, Tensor], *, held: int | None = None) -> Handover:
        """Write the newest version: what changed since the version `held`, or all of it.

        The result is compared with the checksum of the policy; if it differs, everything is written again. Raises
        ModelError if it still differs, or if the storage is that of another model.
        """
        offered = self._newest
        check_weights(targets, {name: torch.Size(shape) for name, shape in offered.shapes.items()})
        for name, target in targets.items():
            if target.dtype.itemsize < getattr(torch, offered.dtypes[name]).itemsize:
                raise ModelError(f"`{name}` is published in {offered.dtypes[name]} and the rollout has {target.dtype}")
        clock = PhaseClock(torch.device("cpu"))
        received = written = peak = 0
        bases = [held, None] if held is not None else [None]
        for base in bases:
            for chain in offered.chains:
                for publication in _since(chain, base):
                    for bucket in publication.buckets:
                        with clock("gather"):
                            data = self._store.get(bucket.key)
                        if data.numel() != bucket.num_bytes:
                            raise ModelError(
                                f"weights of version {publication.version} arrived with {data.numel()} bytes "
                                f"and were published with {bucket.num_bytes}"
                            )
                        with clock("write"):
                            written += sum(_write(part, data, targets, offered.dtypes) for part in bucket.parts)
                        received, peak = received + bucket.num_bytes, max(peak, bucket.num_bytes)
            if _checksum(targets, offered) == offered.checksum:
                return Handover(
                    version=offered.version,
                    num_weights=len(offered.shapes),
                    received_bytes=received,
                    written_bytes=written,
                    peak_bytes=peak,
                    full_bytes=sum(
                        math.prod(shape) * getattr(torch, offered.dtypes[name]).itemsize
                        for name, shape in offered.shapes.items()
                    ),
                    **clock.seconds(),
                )
        raise ModelError(f"weights of version {offered.version} arrived damaged: their checksum differs")

    @property
    def _newest(self) -> PublishedWeights:
        assert self._offered is not None, "no version has been offered"
        return self._offered


def _since(chain: Sequence[Publication], held: int | None) -> Sequence[Publication]:
    """The publications that lead from a held version to the newest one; all of them if it is not among them."""
    for number, publication in enumerate(chain):
        if held is not None and publication.version == held:
            return chain[number + 1 :]
    return chain


def _write(part: PublishedPart, data: Tensor, targets: Mapping[str, Tensor], dtypes: Mapping[str, str]) -> int:
    """Write a part into its weight; returns the bytes."""
    dtype = getattr(torch, dtypes[part.weight])
    weight = targets[part.weight]
    view = weight[tuple(slice(start, stop) for start, stop in part.box)]
    if part.num_changed is None:
        values = data[part.start : part.start + num_elements(part.box) * dtype.itemsize].view(dtype)
        view.copy_(values.view(view.shape))
        return view.nbytes
    size = part.num_changed * _INDEX_BYTES
    places = data[part.start : part.start + size].view(torch.int32).long()
    first = part.start + aligned(size)
    values = data[first : first + part.num_changed * dtype.itemsize].view(dtype)
    coordinates = torch.unravel_index(places.to(view.device), view.shape)
    view.index_put_(coordinates, values.to(view.device, view.dtype))
    return part.num_changed * view.dtype.itemsize


def _checksum(targets: Mapping[str, Tensor], offered: PublishedWeights) -> int:
    total = 0
    for name, shape in offered.shapes.items():
        values = targets[name].detach().to(getattr(torch, offered.dtypes[name]))
        total += checksum(values, name=name, shape=shape, box=tuple((0, size) for size in shape))
    return total % 2**64
