"""Weights that several ranks share: by FSDP2, which makes a layer whole while it runs, and by tensor parallelism, in
which each rank computes with its part of a layer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from rl_compat.distributed.ranks import Ranks
from rl_compat.errors import ModelError
from rl_compat.models.deferred import fill, give_memory, stored_weights
from rl_compat.models.load import TORCH_DTYPES
from rl_compat.models.parts import SUMS_GRADIENT, TENSOR_AXIS
from rl_compat.planning.types import KeptWhole, RolePlan

STYLES: Mapping[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "colwise_gather_output": partial(ColwiseParallel, output_layouts=Replicate()),
    "rowwise": RowwiseParallel,
    "rowwise_split_input": partial(RowwiseParallel, input_layouts=Replicate()),
    "replicated_with_grad_allreduce": partial(SequenceParallel, sequence_dim=2, use_local_output=True),
}
"by the name that transformers gives them; the last is a norm of each head, which is on one rank"


class Units:
    """The layers of a sharded model and its root, each of which is gathered on its own; none of a whole copy."""

    def __init__(self, root: nn.Module, *, kept_whole: KeptWhole = "none") -> None:
        self._modules = [module for module in root.modules() if isinstance(module, FSDPModule)]
        self._kept_whole = kept_whole
        self._exchanges = True

    def before_backward(self, *, is_last: bool) -> None:
        """Exchange gradients in the last backward of an update alone, as far as the plan keeps them whole.

        Replicas, which each have the sum of their own ranks, exchange these sums in the last one in any case.
        """
        if is_last == self._exchanges:
            return
        self._exchanges = is_last
        for module in self._modules:
            module.set_requires_all_reduce(is_last, recurse=False)
            if self._kept_whole != "none":
                module.set_reshard_after_backward(is_last, recurse=False)
            if self._kept_whole == "all":
                module.set_requires_gradient_sync(is_last, recurse=False)

    def reshard(self) -> None:
        """Free the whole weights that the last forward left."""
        for module in self._modules:
            module.reshard()

    def abandon(self) -> None:
        """Return to the state between two updates, without gradients."""
        if not self._modules:
            return
        self.before_backward(is_last=True)
        for module in self._modules:
            state = module._get_fsdp_state()
            for group in _groups(state):
                group._partial_reduce_output = None
                for parameter in group.fsdp_params:
                    parameter.unsharded_accumulated_grad = None
                    for held in (parameter.sharded_param, getattr(parameter, "_unsharded_param", None)):
                        if held is not None:
                            held.grad = None
        root = self._modules[0]
        if hasattr(root, "reset_iter_state"):
            root.reset_iter_state()
        else:  # before torch 2.13: what ends a backward pass; without gradients it exchanges nothing
            state = root._get_fsdp_state()  # type: ignore[unreachable]
            state._root_post_backward_final_callback()
            state._state_ctx.iter_forward_root = None


def _groups(state: Any) -> list[Any]:
    """What a unit holds: one group, or none, before torch 2.13."""
    groups = state._fsdp_param_groups if hasattr(state, "_fsdp_param_groups") else [state._fsdp_param_group]
    return [group for group in groups if group is not None]


def shard_model(root: nn.Module, *, role: RolePlan, ranks: Ranks) -> Units:
    """Divide all parameters among the ranks of a plan, in place; each layer in turn moves to the device.

    The forward of the root gathers the weights outside of layers, that of a layer its own in the dtype that it computes
    in: all, or under tensor parallelism its part of them. Backward gives each rank its part of the gradients' mean over
    all ranks, in fp32. Raises ModelError for layers that tensor parallelism cannot divide.
    """
    if role.num_shards == 1:
        return Units(root)
    group, width = ranks.group or dist.group.WORLD, role.tensor_parallel
    assert group is not None and group.size() % role.num_shards == 0, f"{role.num_shards} shards"
    waiting, styles = stored_weights(root), _styles(root) if width > 1 else {}
    sizes, device_type = (group.size() // role.num_shards, role.num_shards), torch.device(role.device).type
    mesh = _mesh(group, sizes, device_type)
    inside = mesh if width == 1 else _mesh(group, (sizes[0], role.num_shards // width, width), device_type)
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # it is told of each axis
    for layer in _layers(root):
        give_memory(layer, role.device)
        if width > 1:
            _sum_gradients_once(layer, styles, inside[TENSOR_AXIS])
            parallelize_module(layer, inside[TENSOR_AXIS], _of_layer(layer, styles))
        fully_shard(
            layer,
            mesh=_without_tensor(inside),
            mp_policy=_precision(layer, role),
            reshard_after_forward=role.kept_whole == "none",
        )
    give_memory(root, role.device)
    fully_shard(root, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False))
    fill(root, waiting)
    return Units(root, kept_whole=role.kept_whole)


def _layers(root: nn.Module) -> list[nn.Module]:
    """The layers of the model, which are those modules of lists that are in no other list."""
    layers: list[nn.Module] = []
    for child in root.children():
        layers += list(child) if isinstance(child, nn.ModuleList) else _layers(child)
    return [layer for layer in layers if any(True for _ in layer.parameters())]


def _styles(root: nn.Module) -> dict[str, str]:
    """How transformers divides the parts of a layer, by their names in it."""
    config: Any = next(module.config for module in root.modules() if hasattr(module, "config"))
    plan = config.get_text_config().base_model_tp_plan or {}
    styles = {name.removeprefix("layers.*."): style for name, style in plan.items() if name.startswith("layers.*.")}
    unknown = set(styles.values()) - STYLES.keys()
    if unknown or not styles:
        raise ModelError(
            f"the layers of `{config.model_type}` cannot be divided: {', '.join(sorted(unknown)) or 'no plan'}",
            hint="set `plan.tensor_parallel=1`",
        )
    return styles


def _of_layer(layer: nn.Module, styles: Mapping[str, str]) -> dict[str, ParallelStyle]:
    """The plan of a layer. Of an adapter, the matrix is divided whose outputs or inputs the base divides."""
    plan: dict[str, ParallelStyle] = {}
    for name, style in styles.items():
        if hasattr(layer.get_submodule(name), "lora_A"):
            part = "lora_A" if style.startswith("rowwise") else "lora_B"
            plan |= {f"{name}.base_layer": STYLES[style](), f"{name}.{part}.*": STYLES[style]()}
        else:
            plan[name] = STYLES[style]()
    return plan


def _sum_gradients_once(layer: nn.Module, styles: Mapping[str, str], mesh: DeviceMesh) -> None:
    """Sum the gradient of what the parts of a module have as their input once, and not once for each part.

    Adapters, which sum the gradient between their matrices, have all of it on every rank.
    """

    def replicated(part: nn.Module, args: tuple[Any, ...]) -> Tensor:
        return _with_gradient(_replicated(args[0], mesh), lambda grad: _replicated(grad.to_local(), mesh))

    def divided(part: nn.Module, args: tuple[Any, ...]) -> Tensor:
        return _with_gradient(args[0], lambda grad: grad / mesh.size())

    def summed(grad: Tensor) -> Tensor:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=mesh.get_group())
        return total

    def shared(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (_with_gradient(args[0], summed), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": _with_gradient(kwargs["hidden_states"], summed)}

    names = [name for name, style in styles.items() if style.startswith("colwise")]
    for module in {layer.get_submodule(name.rpartition(".")[0]) for name in names}:
        module.register_forward_pre_hook(shared, with_kwargs=True)
        setattr(module, SUMS_GRADIENT, True)
    for name in names:
        part: Any = layer.get_submodule(name)
        for adapter in part.lora_A.values() if hasattr(part, "lora_A") else ():
            adapter.register_forward_pre_hook(divided)
        getattr(part, "base_layer", part).register_forward_pre_hook(replicated)


def _replicated(value: Tensor, mesh: DeviceMesh) -> DTensor:
    return DTensor.from_local(value, mesh, [Replicate()], run_check=False)


def _with_gradient(value: Tensor, change: Callable[[Any], Tensor]) -> Tensor:
    """The same tensor, whose gradient is changed on its way back."""
    seen = value.view_as(value)
    if seen.requires_grad:
        seen.register_hook(change)
    return seen


def _precision(layer: nn.Module, role: RolePlan) -> MixedPrecisionPolicy:
    """fp32 weights are gathered in the compute dtype, since autocast would keep a copy of each until backward."""
    largest = max(layer.parameters(), key=lambda parameter: parameter.numel())
    casts = largest.dtype == torch.float32 and role.compute_dtype != "fp32"
    return MixedPrecisionPolicy(
        param_dtype=TORCH_DTYPES[role.compute_dtype] if casts else None,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )


AXES = ("replicas", "shards", TENSOR_AXIS)


@lru_cache
def _mesh(group: dist.ProcessGroup, sizes: tuple[int, ...], device_type: str) -> DeviceMesh:
    """Replicas × shards (× tensor), without replicas if there are none; neighbours share a copy, or a layer."""
    names = AXES[: len(sizes)][sizes[0] == 1 :]
    table = torch.tensor(dist.get_process_group_ranks(group)).view(sizes[-len(names) :])
    if len(names) == 1:
        return DeviceMesh.from_group(group, device_type, mesh_dim_names=names)
    own = (table == dist.get_rank()).nonzero()[0].tolist()
    groups = []
    for axis in reversed(range(len(names))):
        members = table[tuple(slice(None) if other == axis else place for other, place in enumerate(own))]
        groups.append(dist.new_group(members.tolist(), use_local_synchronization=True))
    return DeviceMesh.from_group(groups[::-1], device_type, table, mesh_dim_names=names)


def _without_tensor(mesh: DeviceMesh) -> DeviceMesh:
    names = tuple(name for name in mesh.mesh_dim_names or () if name != TENSOR_AXIS)
    return mesh[names] if len(names) < mesh.ndim else mesh
