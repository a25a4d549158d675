"""Ending vLLM inside this process so that none of its memory stays taken.

Its own shutdown lets go of some things in some versions. What keeps memory beyond it, found in 0.19 to 0.32: hooks and
compiled code of torch.compile, captured graphs, the pool that graphs share, the pools of memory that sleeps, caches of
its modules, and references in a circle, which only a collection breaks.
"""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rl_compat.rollout.vllm.pools import installed

_logger = logging.getLogger(__name__)
COLLECTIONS = 3
"each frees what finalizers of the one before have let go of"


@dataclass(slots=True)
class Held:
    """A running engine of vLLM's, until `stop` takes it out, and the trainer's model."""

    engine: Any
    source: weakref.ref[nn.Module]


def stop(held: Held) -> None:
    """End the engine and free its memory; once more does nothing. What fails in one that died is logged and left."""
    engine, held.engine = held.engine, None
    if engine is None:
        return
    pools = installed()
    if pools is not None:
        pools.keep_allocators()
    _attempt(_empty, engine, held.source())
    _attempt(engine.engine_core.shutdown)
    del engine
    free_memory()


def free_memory() -> None:
    """Give back what vLLM keeps for its next engine in this process, and what nothing refers to any more."""
    _forget_cached()
    gc.unfreeze()
    for _ in range(COLLECTIONS):
        gc.collect()
    pools = installed()
    if pools is not None:
        pools.drop()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if pools is not None:
        pools.disown()


def _attempt(end: Callable[..., object], *arguments: object) -> None:
    try:
        end(*arguments)
    except Exception as error:
        _logger.debug("vLLM did not end well: %s", error)


def _empty(engine: Any, source: nn.Module | None) -> None:
    tensors = [] if source is None else [*source.parameters(), *source.buffers()]
    trainers = frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)
    engine.collective_rpc(_let_go, kwargs={"trainers": trainers})


def _let_go(worker: Any, *, trainers: frozenset[int]) -> None:
    """Empty weights and cache, whoever still refers to them, and undo what torch.compile keeps of the model.

    `trainers` are storages that stay as they are, should a loader have taken one over.
    """
    runner = worker.model_runner
    model = runner.get_model()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    _forget_compiled(model)
    _forget_graphs()
    for tensor in [*model.parameters(), *model.buffers(), *runner.kv_caches]:
        if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in trainers:
            tensor.untyped_storage().resize_(0)
    runner.kv_caches.clear()


def _forget_compiled(model: nn.Module) -> None:
    """Hooks hold the model, and the code of its class holds what was compiled for it."""
    hooks = torch._dynamo.convert_frame._bytecode_hooks
    modules: dict[int, Any] = {id(item): item for item in model.modules() if hasattr(item, "original_code_object")}
    for key, hook in list(hooks.items()):
        if id(getattr(hook, "__self__", None)) in modules:
            del hooks[key]
    for module in modules.values():
        torch._dynamo.eval_frame.remove_from_cache(module.original_code_object())


def _forget_graphs() -> None:
    module = sys.modules.get("vllm.compilation.cuda_graph")
    for wrapper in list(getattr(getattr(module, "CUDAGraphWrapper", None), "_all_instances", ())):
        wrapper.concrete_cudagraph_entries.clear()


def _forget_cached() -> None:
    """Tables, caches and the shared pool of graphs: a later engine must not get those of an earlier one.

    0.20 fills kept rotary tables with random numbers like weights, and PyTorch refuses a pool of graphs that are gone.
    """
    rotary = sys.modules.get("vllm.model_executor.layers.rotary_embedding")
    getattr(rotary, "_ROPE_DICT", {}).clear()
    supports_keyword = getattr(sys.modules.get("vllm.utils.func_utils"), "supports_kw", None)
    getattr(supports_keyword, "cache_clear", lambda: None)()
    platform: Any = type(getattr(sys.modules.get("vllm.platforms"), "_current_platform", None))
    if hasattr(platform, "_global_graph_pool"):
        platform._global_graph_pool = None
