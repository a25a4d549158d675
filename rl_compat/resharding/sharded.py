"""The weights of a policy that is sharded over ranks, brought to the rollout of every rank bucket by bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from rl_compat.errors import ModelError
from rl_compat.resharding.handover import Handover
from rl_compat.resharding.layout import Division, Placement, RankMesh, WeightSpec, whole
from rl_compat.resharding.schedule import Bucket, schedule
from rl_compat.resharding.source import Weight, check_weights
from rl_compat.resharding.transport import BucketTransport, HeldPart, ProcessGroups

BUCKET_BYTES = 2**26
"memory that a handover needs on each rank, in addition to the weights of both sides"


class ShardedSource:
    """The shards of all ranks, for rollouts that own their storage on the same ranks.

    Iteration and `fill` are collective: all ranks of the group call them together. Weights without shards, such as a
    frozen base that every rank holds whole, are copied.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        version: int,
        group: dist.ProcessGroup | None = None,
        resident: Callable[[], AbstractContextManager[None]] = nullcontext,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """`group` has all ranks of the policy, None is the default group."""
        self.model = model
        self.version = version
        self.revision = 0
        self.resident = resident
        self._bucket_bytes = bucket_bytes
        held = self._weights()
        self.trained = frozenset(name for name, parameter in held.items() if parameter.requires_grad) or frozenset(held)
        "weights that change"
        meshes = {weight.device_mesh for weight in held.values() if isinstance(weight, DTensor)}
        known = [mesh.get_group(dim) for mesh in meshes for dim in range(mesh.ndim)]
        self._groups = ProcessGroups(group, known) if dist.is_initialized() else None
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self._everywhere = RankMesh.line((0,) if self._groups is None else self._groups.ranks)
        self.layout = {name: placement_of(weight, self._everywhere, meshes) for name, weight in held.items()}
        self._schedules: dict[tuple[WeightSpec, ...], tuple[Bucket, ...]] = {}

    def changed(self, *, version: int) -> None:
        """Record that the weights have changed."""
        self.version, self.revision = version, self.revision + 1

    def __iter__(self) -> Iterator[Weight]:
        """Whole weights in the dtype of the policy; those of one bucket exist at a time."""
        held = self._weights()
        moved = self._moved(held, {name: weight.dtype for name, weight in held.items()})
        return (Weight(name, tensor, self.version) for name, tensor in self._gathered(held, *moved))

    def stream(self, load: Callable[[Iterator[tuple[str, Tensor]]], None], *, dtype: torch.dtype) -> Handover:
        """Give whole weights to a function; those of one bucket exist at a time."""
        held = self._weights()
        buckets, transport = self._moved(held, {name: lower_dtype(w.dtype, dtype) for name, w in held.items()})
        load(self._gathered(held, buckets, transport))
        return self._record(held, transport, num_weights=len(held))

    def _moved(
        self, held: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype]
    ) -> tuple[tuple[Bucket, ...], BucketTransport]:
        """How the weights that ranks share become whole."""
        shared = {name: weight for name, weight in held.items() if not self._is_whole(name, weight)}
        return self._transport(shared, dtypes, next(iter(held.values())).device)

    def _is_whole(self, name: str, weight: Tensor) -> bool:
        return len(self.layout[name].holders(tuple(weight.shape))) == 1

    def _gathered(
        self, held: Mapping[str, Tensor], buckets: Sequence[Bucket], transport: BucketTransport
    ) -> Iterator[tuple[str, Tensor]]:
        """Weights that every rank holds whole are the policy's own tensors."""
        sources, targets = self.parts(), dict[str, HeldPart]()
        yield from ((name, sources[name].tensor) for name, weight in held.items() if self._is_whole(name, weight))
        missing = {name: weight.numel() for name, weight in held.items()}
        for bucket in buckets:
            for move in (*bucket.moves, *bucket.copies):
                if self.rank in move.targets:
                    if move.weight not in targets:
                        targets[move.weight] = whole_part(transport.empty(move.weight, held[move.weight].shape))
                    missing[move.weight] -= targets[move.weight].view(move.box).numel()
            transport.carry(bucket, sources, targets)
            for name in [name for name in targets if not missing[name]]:
                yield name, targets[name].tensor
                transport.free(targets.pop(name).tensor)

    def fill(self, targets: Mapping[str, Tensor], *, held: int | None = None) -> Handover:
        """Write the weights into a rollout's own storage, in its dtypes.

        Frozen weights are left out if the storage of every rank holds some version of the policy. Raises ModelError,
        before anything is written, if the storage is that of another model.
        """
        weights = self._weights()
        check_weights(targets, {name: weight.shape for name, weight in weights.items()})
        moved = weights
        if not self._any(held is None):
            moved = {name: weight for name, weight in weights.items() if name in self.trained}
        dtypes = {name: lower_dtype(weight.dtype, targets[name].dtype) for name, weight in moved.items()}
        buckets, transport = self._transport(moved, dtypes, next(iter(targets.values())).device)
        sources = self.parts()
        filled = {name: whole_part(targets[name].detach()) for name in moved}
        for bucket in buckets:
            transport.carry(bucket, sources, filled)
        return self._record(weights, transport, num_weights=len(moved))

    def _record(self, weights: Mapping[str, Tensor], transport: BucketTransport, *, num_weights: int) -> Handover:
        return Handover(
            version=self.version,
            num_weights=num_weights,
            received_bytes=transport.received_bytes,
            written_bytes=transport.written_bytes,
            peak_bytes=transport.buffer_bytes + transport.peak_bytes,
            full_bytes=sum(weight.numel() * weight.dtype.itemsize for weight in weights.values()),
            **transport.clock.seconds(),
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the whole weights, layer by layer."""
        return {name: tuple(weight.shape) for name, weight in self._weights().items()}

    def parts(self) -> dict[str, HeldPart]:
        """What this rank holds of each weight."""
        parts: dict[str, HeldPart] = {}
        for name, weight in self._weights().items():
            local = weight.to_local() if isinstance(weight, DTensor) else weight
            parts[name] = HeldPart(local.detach(), self.layout[name].box(tuple(weight.shape), self.rank))
        return parts

    def _weights(self) -> dict[str, Tensor]:
        """The parameters as shards. A forward leaves some modules unsharded, whose parameters are then others."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return dict(self.model.named_parameters())

    def _transport(
        self, held: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype], device: torch.device
    ) -> tuple[tuple[Bucket, ...], BucketTransport]:
        specs = tuple(WeightSpec(name, tuple(weight.shape), dtypes[name].itemsize) for name, weight in held.items())
        if specs not in self._schedules:
            target = whole(held, self._everywhere)
            self._schedules[specs] = schedule(specs, self.layout, target, bucket_bytes=self._bucket_bytes)
        buckets = self._schedules[specs]
        return buckets, BucketTransport(buckets, rank=self.rank, groups=self._groups, dtypes=dtypes, device=device)

    def _any(self, flag: bool) -> bool:
        """Whether the flag is set on at least one rank."""
        if self._groups is None:
            return flag
        on_gpu = dist.get_backend(self._groups.everyone) == "nccl"
        flags = torch.tensor([int(flag)], device="cuda" if on_gpu else "cpu")
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._groups.everyone)
        return bool(flags)


def placement_of(weight: Tensor, everywhere: RankMesh, meshes: Iterable[DeviceMesh] = ()) -> Placement:
    """Where a weight is: on the mesh of a DTensor, or whole on every rank.

    A weight of a layer that ranks compute together, but not this weight, is on a part of the mesh of the layer; it is
    the same on every such part. `meshes` are those of all weights.
    """
    if not isinstance(weight, DTensor):
        return Placement(everywhere)
    names = [name for name, _ in _axes(weight.device_mesh)]
    around = (mesh for mesh in meshes if set(_axes(weight.device_mesh)) < set(_axes(mesh)))
    mesh = next(around, weight.device_mesh)
    ranks = RankMesh(_axes(mesh), tuple(mesh.mesh.flatten().tolist()))
    divisions: list[tuple[bool, Division]] = []
    for name, placement in zip(names, weight.placements, strict=True):
        if placement.is_partial():
            raise ModelError(f"the ranks hold partial sums of a weight, which cannot be handed over: {placement}")
        dim = getattr(placement, "dim", None)
        if dim is not None:
            later = hasattr(placement, "split_factor")  # FSDP2 divides what tensor parallelism has left
            divisions.append((later, Division(name, dim)))
    return Placement(ranks, tuple(division for _, division in sorted(divisions, key=lambda one: one[0])))


def _axes(mesh: DeviceMesh) -> tuple[tuple[str, int], ...]:
    """Names and sizes."""
    names = mesh.mesh_dim_names or tuple(f"axis {number}" for number in range(mesh.ndim))
    return tuple(zip(names, mesh.mesh.shape, strict=True))


def whole_part(tensor: Tensor) -> HeldPart:
    return HeldPart(tensor, tuple((0, size) for size in tensor.shape))


def lower_dtype(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    """The dtype that takes fewer bytes to move, the first one if both take the same."""
    return other if other.itemsize < one.itemsize else one
