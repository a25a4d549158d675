"""Linear layers with the same input as one matrix product: over their weights, packed for the CPU, or with adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rl_compat.models.files.storage import ExactHead, StoredLinear, linear_in_pieces
from rl_compat.rollout.inference import autocast

PLAIN_LINEARS = (nn.Linear, StoredLinear, ExactHead)


class Projection(Protocol):
    def __call__(self, states: Tensor) -> Tensor:
        """States [N, inputs] to the concatenated outputs of all its layers, [N, outputs]."""
        ...


def is_plain(module: nn.Module) -> bool:
    """A linear layer whose weight is an ordinary matrix: no adapter on it, not quantized."""
    return isinstance(module, nn.Linear) and type(module) in PLAIN_LINEARS and module.weight.is_floating_point()


class Product(Protocol):
    def __call__(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """`states @ weight.T + bias` in the dtype of the states; None where PyTorch should compute it."""
        ...


class SharedProjection:
    """Layers over their own weights, in `compute_dtype`; one product if the weights are adjacent in memory."""

    def __init__(self, modules: Sequence[nn.Module], compute_dtype: torch.dtype) -> None:
        assert all(is_plain(module) for module in modules)
        self._weights: list[Tensor] = [module.weight for module in modules]  # type: ignore[misc]
        self._biases: list[Tensor | None] = [module.bias for module in modules]  # type: ignore[misc]
        self._dtype = compute_dtype
        self.small_batch: Product | None = None
        "computes the product where it is faster; set by the owner of all layers of this shape"

    def whole_weight(self) -> Tensor | None:
        """One view over all weights, or None if they are not adjacent in memory."""
        return side_by_side(self._weights)

    def __call__(self, states: Tensor) -> Tensor:
        states = states.to(self._dtype)
        whole = self.whole_weight()
        biases = [bias for bias in self._biases if bias is not None]
        if whole is not None and len(biases) in (0, len(self._biases)):
            bias = side_by_side(biases) if biases else None
            bias = torch.cat(biases) if biases and bias is None else bias
            output = None if self.small_batch is None else self.small_batch(states, whole, bias)
            return linear_in_pieces(states, whole, bias) if output is None else output
        parts = [
            linear_in_pieces(states, weight, bias) for weight, bias in zip(self._weights, self._biases, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


class CalledProjection:
    """Layers called one by one, for adapters and quantized weights."""

    def __init__(self, modules: Sequence[nn.Module], dtype: torch.dtype, *, autocast_dtype: torch.dtype | None) -> None:
        """`dtype` is that of inputs and outputs, `autocast_dtype` that of the matrix products."""
        self._modules = list(modules)
        self._dtype = dtype
        self._autocast_dtype = autocast_dtype

    def __call__(self, states: Tensor) -> Tensor:
        states = states.to(self._dtype)
        with autocast(states.device, self._autocast_dtype, caches=False):
            parts = [module(states) for module in self._modules]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)).to(self._dtype)


def side_by_side(parameters: Sequence[Tensor]) -> Tensor | None:
    """One view over tensors that are adjacent in one storage, stacked along the first dimension, else None."""
    first = parameters[0].detach()
    if len(parameters) == 1:
        return first
    end, rows = first.data_ptr(), 0
    storage = first.untyped_storage().data_ptr()
    for parameter in parameters:
        if (
            parameter.data_ptr() != end
            or parameter.untyped_storage().data_ptr() != storage
            or parameter.dtype != first.dtype
            or not parameter.is_contiguous()
        ):
            return None
        end, rows = end + parameter.nbytes, rows + parameter.shape[0]
    return first.as_strided((rows, *first.shape[1:]), first.stride())


@torch.no_grad()
def lay_side_by_side(parameters: Sequence[nn.Parameter]) -> bool:
    """Move parameters of equal width into one storage, in order; returns whether they are in one now.

    The parameter objects stay, so that optimizers and checkpoints are not affected; only the addresses of their data
    change. Both copies of these parameters exist for a moment.
    """
    first = parameters[0]
    if side_by_side(parameters) is not None:
        return True
    alike = all(
        p.dtype == first.dtype and p.device == first.device and p.shape[1:] == first.shape[1:] for p in parameters
    )
    if not alike:
        return False
    whole = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, part in zip(parameters, whole.split([p.shape[0] for p in parameters]), strict=True):
        parameter.data = part
    return True


def lay_modules_side_by_side(modules: Sequence[nn.Module]) -> None:
    """The weights, and the biases if all have one, of plain linear layers with the same input."""
    if len(modules) < 2 or not all(is_plain(module) for module in modules):
        return
    lay_side_by_side([module.weight for module in modules])  # type: ignore[misc]
    biases = [module.bias for module in modules]
    if all(bias is not None for bias in biases):
        lay_side_by_side(biases)  # type: ignore[arg-type]


class PackedProjection:
    """fp32 layers on the CPU over a second copy of their weights as one matrix in oneDNN's layout."""

    ROWS_HINT = 16
    "rows of a typical decode step, for which the layout is tuned; one step then took 0.6 of the time"

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        assert all(is_plain(module) and module.weight.device.type == "cpu" for module in modules)  # type: ignore[union-attr]
        self._modules: list[Any] = list(modules)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Pack the current weights."""
        weight = torch.cat([module.weight for module in self._modules])
        biases = [
            module.weight.new_zeros(len(module.weight)) if module.bias is None else module.bias
            for module in self._modules
        ]
        self._bias = torch.cat(biases) if any(module.bias is not None for module in self._modules) else None
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, self.ROWS_HINT)

    def __call__(self, states: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(states, self._packed, self._bias, "none", [], "")
        return output


def packing_unavailable_reason() -> str | None:
    """Why weights cannot be packed with this torch; None if they can."""
    if not torch.backends.mkldnn.is_available():
        return "this torch was built without oneDNN"
    if not (hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return f"torch {torch.__version__} has no packed linear operator"
    return None


def has_adapter(module: nn.Module) -> bool:
    return hasattr(module, "base_layer") and hasattr(module, "lora_A")


def base_of(module: nn.Module) -> nn.Module:
    """The layer under an adapter, or the layer itself."""
    return module.base_layer if has_adapter(module) else module  # type: ignore[return-value]


def is_plain_adapter(module: Any) -> bool:
    """Whether the adapters are plain LoRA: no variant, no bias, neither merged nor disabled."""
    if not has_adapter(module) or module.merged or module.disable_adapters:
        return False
    if getattr(module, "lora_variant", None) or getattr(module, "fan_in_fan_out", False):
        return False
    halves = [half for name in active_adapters(module) for half in (module.lora_A[name], module.lora_B[name])]
    return all(type(half) is nn.Linear and half.bias is None for half in halves)


class AdaptedProjection:
    """A projection over the base layers plus their adapters; the base layers are not changed.

    All adapters are kept in two matrices: the down projections stacked, the up projections scaled and block-diagonal.
    `refresh` updates them in place.
    """

    def __init__(self, base: Projection, modules: Sequence[nn.Module], dtype: torch.dtype) -> None:
        self.base = base
        self._dtype = dtype
        self._parts: list[tuple[Any, str, int]] = []
        outputs = 0
        for module in modules:
            self._parts += [
                (module, name, outputs) for name in (active_adapters(module) if has_adapter(module) else ())
            ]
            outputs += int(base_of(module).out_features)  # type: ignore[arg-type]
        first = self._parts[0][0].lora_A[self._parts[0][1]].weight
        rank = sum(module.lora_A[name].weight.shape[0] for module, name, _ in self._parts)
        self._down = torch.zeros(rank, first.shape[1], dtype=dtype, device=first.device)
        self._up = torch.zeros(outputs, rank, dtype=dtype, device=first.device)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the adapters as they are now."""
        column = 0
        for module, name, row in self._parts:
            down, up = module.lora_A[name].weight, module.lora_B[name].weight
            end = column + down.shape[0]
            self._down[column:end].copy_(down)
            self._up[row : row + up.shape[0], column:end].copy_(up * module.scaling[name])
            column = end

    def __call__(self, states: Tensor) -> Tensor:
        states = states.to(self._dtype)
        return torch.addmm(self.base(states), states @ self._down.T, self._up.T)


def active_adapters(module: Any) -> list[str]:
    """Names of the active adapters that a layer has."""
    return [name for name in module.active_adapters if name in module.lora_A]
