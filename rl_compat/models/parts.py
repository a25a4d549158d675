"""Tensors of which each rank holds a part. For one that is not shared, the functions here return what they get."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

TENSOR_AXIS = "tensor"
"of a mesh: ranks that compute together"


SUMS_GRADIENT = "sums_gradient"
"of a module: ranks that compute it together sum the gradient of its input"


def is_shared(tensor: Tensor) -> bool:
    """Whether this rank holds a part of the tensor."""
    return isinstance(tensor, DTensor)


def is_divided(tensor: Tensor) -> bool:
    """Whether this rank computes with a part of the tensor."""
    return isinstance(tensor, DTensor) and TENSOR_AXIS in (tensor.device_mesh.mesh_dim_names or ())


def mesh_of(tensor: Tensor) -> DeviceMesh | None:
    """The ranks that share a tensor."""
    return tensor.device_mesh if isinstance(tensor, DTensor) else None


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor on this rank, in the same memory; all of a tensor that is not shared."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """A tensor from the parts of all ranks, which make this call together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_part(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy of the part of a whole tensor that this rank holds, if it is shared as `like` is."""
    return tensor[own_place(like)].clone() if isinstance(like, DTensor) else tensor


def own_place(tensor: Tensor) -> tuple[slice, ...]:
    """Where the part that this rank holds is in the whole tensor."""
    place = [slice(0, size) for size in tensor.shape]
    axes = enumerate(tensor.placements) if isinstance(tensor, DTensor) else ()
    by_turn = sorted(axes, key=lambda axis: hasattr(axis[1], "split_factor"))
    for axis, placement in by_turn:  # FSDP2 divides what tensor parallelism has left
        dim = getattr(placement, "dim", None)
        if dim is not None:
            assert isinstance(tensor, DTensor)
            start, stop = place[dim].start, place[dim].stop
            size = -(-(stop - start) // tensor.device_mesh.size(axis))
            first = min(start + size * tensor.device_mesh.get_local_rank(axis), stop)
            place[dim] = slice(first, min(first + size, stop))
    return tuple(place)


def from_part(part: Tensor, like: Tensor) -> Tensor:
    """The tensor, shared as `like` is, of which this rank has this part."""
    if not isinstance(like, DTensor):
        return part
    return DTensor.from_local(part, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())
