"""Linear layers with the same input as one matrix product, without a second copy of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rl_compat.models.files.storage import ExactHead, StoredLinear, linear_in_pieces

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
            bias = self._whole_bias(biases)
            output = None if self.small_batch is None else self.small_batch(states, whole, bias)
            return linear_in_pieces(states, whole, bias) if output is None else output
        parts = [
            linear_in_pieces(states, weight, bias) for weight, bias in zip(self._weights, self._biases, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _whole_bias(self, biases: list[Tensor]) -> Tensor | None:
        if not biases:
            return None
        whole = side_by_side(biases)
        return torch.cat(biases) if whole is None else whole


class CalledProjection:
    """Layers called one by one, for adapters and quantized weights."""

    def __init__(self, modules: Sequence[nn.Module], dtype: torch.dtype, *, autocast_dtype: torch.dtype | None) -> None:
        """`dtype` is that of inputs and outputs, `autocast_dtype` that of the matrix products."""
        self._modules = list(modules)
        self._dtype = dtype
        self._autocast_dtype = autocast_dtype

    def __call__(self, states: Tensor) -> Tensor:
        states = states.to(self._dtype)
        with self._context(states.device.type):
            parts = [module(states) for module in self._modules]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)).to(self._dtype)

    def _context(self, device_type: str) -> AbstractContextManager[object]:
        if self._autocast_dtype is None:
            return nullcontext()
        return torch.autocast(device_type, dtype=self._autocast_dtype, cache_enabled=False)


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
    "rows of a typical decode step, for which the layout is tuned"

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        assert all(is_plain(module) for module in modules)
        self._modules: list[Any] = list(modules)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Pack the current weights."""
        weight = torch.cat([module.weight for module in self._modules])
        biases: list[Tensor | None] = [module.bias for module in self._modules]
        zeros = [torch.zeros(module.weight.shape[0]) for module in self._modules]
        given = [zero if bias is None else bias for bias, zero in zip(biases, zeros, strict=True)]
        self._bias = torch.cat(given) if any(bias is not None for bias in biases) else None
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, self.ROWS_HINT)

    def __call__(self, states: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(states, self._packed, self._bias, "none", [], "")
        return output
