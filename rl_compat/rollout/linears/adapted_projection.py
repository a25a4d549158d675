"""Low-rank adapters of layers with the same input, applied as two matrix products for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_compat.rollout.linears.projections import Projection


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
