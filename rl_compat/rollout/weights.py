"""The weights of generation: the trainer's own tensors, or a copy in a lower dtype."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from rl_compat.models.files.storage import keep_in_storage_dtype
from rl_compat.models.load import TORCH_DTYPES
from rl_compat.planning.types import DType, RolloutPlan
from rl_compat.rollout.inference import hugging_face_model, is_quantized
from rl_compat.rollout.projections import (
    AdaptedProjection,
    CalledProjection,
    PackedProjection,
    Projection,
    SharedProjection,
    active_adapters,
    base_of,
    has_adapter,
    is_plain,
    is_plain_adapter,
    lay_modules_side_by_side,
    packing_unavailable_reason,
)
from rl_compat.rollout.session import RolloutSession
from rl_compat.rollout.types import Decode

_logger = logging.getLogger(__name__)


class SharedWeights:
    """The trainer's model itself: always up to date, no memory of its own."""

    def __init__(
        self, model: nn.Module, *, compute_dtype: torch.dtype = torch.float32, autocast_dtype: torch.dtype | None = None
    ) -> None:
        self.model = hugging_face_model(model)
        "the Hugging Face model to generate with"
        self.compute_dtype = compute_dtype
        self.autocast_dtype = autocast_dtype
        "dtype of autocast, None if the weights already have the compute dtype"
        self._projections: dict[tuple[nn.Module, ...], Projection] = {}

    def projection(self, modules: Sequence[nn.Module], dtype: torch.dtype | None = None) -> Projection:
        """One matrix product for layers with the same input, in `dtype`, by default `compute_dtype`.

        Returns the same projection for the same layers.
        """
        key = tuple(modules)
        if key not in self._projections:
            self._projections[key] = self._make(key, dtype or self.compute_dtype)
        return self._projections[key]

    def settle(self) -> None:
        """Make weights of one product adjacent again, also after an offload, and refresh the matrices of adapters.

        Call this before weights are read at fixed addresses.
        """
        for modules, projection in self._projections.items():
            if isinstance(projection, SharedProjection):
                lay_modules_side_by_side(modules)
            elif isinstance(projection, AdaptedProjection):
                projection.refresh()

    def refresh(self) -> None:
        """Update copies of the trainer's weights, in place."""

    def applied(self) -> AbstractContextManager[None]:
        """The model may be called inside this context."""
        return nullcontext()

    def _make(self, modules: tuple[nn.Module, ...], dtype: torch.dtype) -> Projection:
        adapted = [module for module in modules if has_adapter(module)]
        if adapted and all(is_plain_adapter(module) for module in adapted):
            base = self.projection([base_of(module) for module in modules], dtype)
            return AdaptedProjection(base, modules, dtype) if any(map(active_adapters, adapted)) else base
        if all(is_plain(module) for module in modules):
            return self._plain(modules, dtype)
        return CalledProjection(modules, dtype, autocast_dtype=self.autocast_dtype)

    def _plain(self, modules: tuple[nn.Module, ...], dtype: torch.dtype) -> Projection:
        return SharedProjection(modules, dtype)


class PackedWeights(SharedWeights):
    """The trainer's model itself, with a packed copy of its linear weights for products."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._packed: dict[tuple[nn.Module, ...], PackedProjection] = {}
        self._called: dict[nn.Module, PackedProjection] | None = None
        "linear layers without a projection, packed on first use"

    def refresh(self) -> None:
        """Pack the linear weights again; the other weights are shared."""
        for packed in (*self._packed.values(), *(self._called or {}).values()):
            packed.refresh()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside the context, calls of linear layers use the packed weights. Gradients never do."""
        if self._called is None:
            projected = {module for modules in self._packed for module in modules}
            linears = [module for module in self.model.modules() if type(module) is nn.Linear]
            self._called = {module: PackedProjection((module,)) for module in linears if module not in projected}
        for module, packed in self._called.items():
            module.forward = packed  # type: ignore[method-assign]
        try:
            yield
        finally:
            for module in self._called:
                del module.forward

    def _plain(self, modules: tuple[nn.Module, ...], dtype: torch.dtype) -> Projection:
        self._packed[modules] = PackedProjection(modules)
        return self._packed[modules]


class CopiedWeights(SharedWeights):
    """A copy with matrices in a lower dtype and merged adapters; everything else is fp32, as under autocast.

    The residual stream stays fp32 and bf16 logits are not rounded, so that log-probabilities are those of a training
    forward under autocast. Embedding and output layer stay the trainer's own tensors.
    """

    def __init__(self, model: nn.Module, *, dtype: torch.dtype) -> None:
        source = hugging_face_model(model)
        outer = (source.get_input_embeddings(), source.get_output_embeddings())
        own = [layer.weight for layer in outer if layer is not None and not hasattr(layer, "base_layer")]
        memo: dict[int, Any] = {id(parameter): parameter for parameter in own}
        self._pairs = [
            (parameter, _lowered(parameter, dtype, memo))
            for name, parameter in source.named_parameters()
            if "lora_" not in name and id(parameter) not in memo
        ]
        self._merged = []
        for layer in _adapter_layers(source):
            plain = memo[id(layer)] = copy.deepcopy(layer.base_layer, memo)
            self._merged.append((layer, plain.weight))
        copied = copy.deepcopy(source, memo)
        keep_in_storage_dtype(copied)
        super().__init__(copied, compute_dtype=dtype, autocast_dtype=dtype)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy every weight, then overwrite those with adapters by the merged products."""
        for source, target in self._pairs:
            target.copy_(source)
        for layer, target in self._merged:
            if not layer.merged and not layer.disable_adapters:
                deltas = [layer.get_delta_weight(adapter) for adapter in active_adapters(layer)]
                target.copy_(sum(deltas, start=layer.base_layer.weight))


def rollout_weights(model: nn.Module, *, compute_dtype: DType, packed_linears: bool = False) -> SharedWeights:
    """A copy if fp32 weights are used in half precision; else the trainer's tensors, shared.

    Half-precision or quantized weights with fp32 adapters are shared under autocast.
    `packed_linears` adds a packed copy to shared fp32 weights; if torch cannot pack, a warning is logged.
    """
    wanted = TORCH_DTYPES[compute_dtype]
    kept = hugging_face_model(model).get_input_embeddings().weight.dtype
    if wanted == torch.float32:
        if packed_linears and kept == torch.float32:
            reason = packing_unavailable_reason()
            if reason is None:
                return PackedWeights(model)
            _logger.warning("rollout does not pack linear weights: %s", reason)
        return SharedWeights(model)
    if kept == torch.float32 and not is_quantized(model):
        return CopiedWeights(model, dtype=wanted)
    mixed = any(p.dtype != wanted for p in model.parameters())
    return SharedWeights(model, compute_dtype=wanted, autocast_dtype=wanted if mixed else None)


class HoldsWeights(RolloutSession):
    """The weights of an engine over its life: taken by the first step, updated, and released on sleep."""

    def __init__(
        self, model: nn.Module, plan: RolloutPlan, *, num_valid_tokens: int | None = None, decode: Decode | None = None
    ) -> None:
        super().__init__(model, plan, num_valid_tokens=num_valid_tokens, decode=decode)
        self._weights: SharedWeights | None = None
        self._adapters: tuple[object, ...] = ()

    def sleep(self) -> None:
        """Release the copy of the weights, and the memory that torch caches."""
        self._weights = None
        if next(self._source.parameters()).is_cuda:
            torch.cuda.empty_cache()

    def _refresh(self) -> None:
        if self._weights is not None:
            self._weights.refresh()

    def _awake(self) -> SharedWeights:
        """The weights, taken again if adapters were merged, disabled or exchanged."""
        adapters = adapter_switches(self._source)
        if self._weights is not None and adapters != self._adapters:
            self.sleep()
        if self._weights is None:
            self._adapters = adapters
            self._weights = rollout_weights(
                self._source,
                compute_dtype=self._plan.compute_dtype,
                packed_linears=self._plan.packed_linears,
            )
        return self._weights


def adapter_switches(model: nn.Module) -> tuple[object, ...]:
    """The active adapters of each layer, and whether they are merged or disabled."""
    layers = _adapter_layers(model)
    return tuple((layer.merged, layer.disable_adapters, tuple(layer.active_adapters)) for layer in layers)


def _adapter_layers(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if has_adapter(module)]


def _lowered(parameter: nn.Parameter, dtype: torch.dtype, memo: dict[int, Any]) -> Tensor:
    """A parameter in `dtype`, stored in `memo` so that deepcopy uses it in place of the original."""
    target = nn.Parameter(torch.empty_like(parameter, dtype=dtype), requires_grad=False)
    memo[id(parameter)] = target
    return target
