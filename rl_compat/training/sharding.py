"""Weights that several ranks share by FSDP2: each holds a part of every tensor, and a layer is whole while it runs."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from rl_compat.distributed.ranks import ProcessGroupRanks, Ranks
from rl_compat.models.deferred import fill, give_memory, stored_weights
from rl_compat.models.load import TORCH_DTYPES
from rl_compat.planning.types import RolePlan


def shard_model(root: nn.Module, *, role: RolePlan, ranks: Ranks) -> None:
    """Divide all parameters among the ranks of a plan, in place; each layer in turn moves to the device.

    The forward of the root gathers the weights outside of layers, that of a layer its own in the dtype that it computes
    in. Backward gives each rank its part of the gradients' mean over all ranks, in fp32.
    """
    if role.num_shards == 1:
        return
    assert isinstance(ranks, ProcessGroupRanks), f"{role.num_shards} shards in one process"
    waiting = stored_weights(root)
    mesh = _mesh(ranks.group or dist.group.WORLD, role.num_shards, torch.device(role.device).type)
    for layer in _layers(root):
        give_memory(layer, role.device)
        fully_shard(layer, mesh=mesh, mp_policy=_precision(layer, role))
    give_memory(root, role.device)
    fully_shard(root, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False))
    fill(root, waiting)


def _layers(root: nn.Module) -> list[nn.Module]:
    """The layers of the model, which are those modules of lists that are in no other list."""
    layers: list[nn.Module] = []
    for child in root.children():
        layers += list(child) if isinstance(child, nn.ModuleList) else _layers(child)
    return [layer for layer in layers if any(True for _ in layer.parameters())]


def _precision(layer: nn.Module, role: RolePlan) -> MixedPrecisionPolicy:
    """fp32 weights are gathered in the compute dtype, since autocast would keep a copy of each until backward."""
    largest = max(layer.parameters(), key=lambda parameter: parameter.numel())
    casts = largest.dtype == torch.float32 and role.compute_dtype != "fp32"
    return MixedPrecisionPolicy(
        param_dtype=TORCH_DTYPES[role.compute_dtype] if casts else None,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )


@lru_cache
def _mesh(group: dist.ProcessGroup, num_shards: int, device_type: str) -> DeviceMesh:
    """One dimension of all ranks, or replicas times shards; neighbouring ranks share a copy."""
    if group.size() == num_shards:
        return DeviceMesh.from_group(group, device_type)
    table = torch.tensor(dist.get_process_group_ranks(group)).view(-1, num_shards)
    rank = dist.get_rank()
    own_row, own_column = (table == rank).nonzero()[0].tolist()
    members = (table[:, own_column].tolist(), table[own_row].tolist())
    groups = [dist.new_group(ranks, use_local_synchronization=True) for ranks in reversed(members)]
    return DeviceMesh.from_group(groups[::-1], device_type, table, mesh_dim_names=("replicas", "shards"))


def reshard(root: nn.Module) -> None:
    """Free the whole weights that the last forward left."""
    if isinstance(root, FSDPModule):
        root.reshard()
