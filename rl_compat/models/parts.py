"""Tensors of which each rank holds a part. For one that is not shared, the functions here return what they get."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard


def is_shared(tensor: Tensor) -> bool:
    """Whether this rank holds a part of the tensor."""
    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor on this rank, in the same memory; all of a tensor that is not shared."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """A tensor from the parts of all ranks, which make this call together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_part(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy of the part of a whole tensor that this rank holds, if it is shared as `like` is."""
    return tensor[own_rows(like)].clone() if isinstance(like, DTensor) else tensor


def own_rows(tensor: Tensor) -> slice:
    """The rows of a tensor that this rank holds."""
    start, stop = 0, tensor.shape[0]
    if not isinstance(tensor, DTensor):
        return slice(start, stop)
    for dim, placement in enumerate(tensor.placements):
        if isinstance(placement, Shard):
            assert placement.dim == 0
            size = -(-(stop - start) // tensor.device_mesh.size(dim))
            start = min(start + size * tensor.device_mesh.get_local_rank(dim), stop)
            stop = min(start + size, stop)
    return slice(start, stop)


def from_part(part: Tensor, like: Tensor) -> Tensor:
    """The tensor, shared as `like` is, of which this rank has this part."""
    if not isinstance(like, DTensor):
        return part
    return DTensor.from_local(part, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())
