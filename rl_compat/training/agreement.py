"""How the ranks of a sharded model notice that one of them ran out of memory, instead of waiting for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule
from torch.utils._pytree import tree_map

from rl_compat.distributed.ranks import Ranks
from rl_compat.models.parts import SUMS_GRADIENT, is_divided


class OtherRankOutOfMemory(torch.OutOfMemoryError):
    """Another rank ran out of memory in this pass."""


class Agreement:
    """Before ranks exchange weights, gradients or activations of a layer they agree that all of them have got so far.

    A rank that runs out of memory leaves the pass with torch.OutOfMemoryError. In place of the next agreement it calls
    `ranks.any(True)`, with which all others leave the pass too. A model that is not sharded needs no agreement.
    """

    def __init__(self, root: nn.Module, *, ranks: Ranks, device: str) -> None:
        self._root = root
        self._ranks = ranks
        self._device = device
        self._watches = self._in_backward = False
        self.interrupted = False
        "whether another rank has ended the last pass"
        self.can_retry = True
        "whether all ranks leave the last pass when one of them ran out of memory"
        layers = [module for module in root.modules() if isinstance(module, FSDPModule)]
        self._is_needed = bool(layers)
        if not self._is_needed:
            return
        sizes = [sum(p.numel() * 4 for p in layer.parameters()) for layer in layers if layer is not root]
        self._exchanged_bytes = 2 * max(sizes, default=0)
        for layer in layers:
            layer.register_forward_pre_hook(self._before_gather, prepend=True)
            if layer is not root:
                layer.register_forward_pre_hook(self._mark_inputs)
        root.register_forward_hook(self._mark_outputs)
        for module in root.modules():
            if hasattr(module, SUMS_GRADIENT):
                module.register_forward_pre_hook(self._mark_all_inputs, with_kwargs=True)
            if any(is_divided(parameter) for parameter in module.parameters(recurse=False)):
                module.register_forward_pre_hook(self._before_sum, prepend=True)
                module.register_forward_hook(self._mark_divided)

    @contextmanager
    def watching(self, watches: bool) -> Iterator[None]:
        """Agree inside the context, if the model is sharded."""
        self._watches = watches and self._is_needed
        self.interrupted, self.can_retry = False, self._watches or not self._is_needed
        try:
            yield
        finally:
            self._watches = False

    def _agree(self) -> None:
        if not self._watches:
            return
        torch.empty(self._exchanged_bytes, dtype=torch.uint8, device=self._device)  # what the exchange allocates
        if self._ranks.any(False):
            self.interrupted = True
            raise OtherRankOutOfMemory

    def _before_gather(self, module: nn.Module, args: Any) -> None:
        if module is self._root:
            self._in_backward = False
        self._agree()

    def _before_sum(self, module: nn.Module, args: Any) -> None:
        self._agree()

    def _mark_divided(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """In backward, agree before the gradients of a module that ranks compute together are exchanged."""
        marked: Tensor = self._marked(output, self._agree)
        return marked

    def _mark_inputs(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """In backward, agree before the gradients of a layer are exchanged."""
        return tuple(self._marked(arg, self._agree) for arg in args)

    def _mark_all_inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """In backward, agree before the gradients of what a module shares among its parts are summed."""
        return tree_map(lambda value: self._marked(value, self._agree), (args, kwargs))

    def _mark_outputs(self, module: nn.Module, args: Any, outputs: Any) -> Any:
        """In backward, agree before the last layer is gathered, and before the gradients of the root are exchanged."""
        return tree_map(lambda output: self._marked(output, self._begin_backward), outputs)

    def _begin_backward(self) -> None:
        if not self._in_backward:
            self._in_backward = True
            self._agree()
            Variable._execution_engine.queue_callback(self._agree)

    def _marked(self, value: Any, agree: Any) -> Any:
        wanted = self._watches and isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled()
        return _InBackward.apply(value, agree) if wanted else value


class _InBackward(torch.autograd.Function):
    """The same tensor; its backward calls a function first."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, call: Any) -> Tensor:
        ctx.call = call
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ctx.call()
        return grads[0], None
