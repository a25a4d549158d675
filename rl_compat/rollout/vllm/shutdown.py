"""Shutdown of vLLM inside this process, without leaving memory behind.

vLLM's own shutdown frees different things in different versions. In 0.19 to 0.32 these keep memory after it: hooks
and compiled code of torch.compile, captured graphs, their shared pool, the pools of sleep mode, caches of modules,
and reference cycles, which only garbage collection breaks.
"""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_logger = logging.getLogger(__name__)
COLLECTIONS = 3
"passes of garbage collection; each frees what finalizers of the previous one released"


@dataclass(slots=True)
class Held:
    """A running vLLM engine, until `stop` removes it, and the trainer's model."""

    engine: Any
    source: weakref.ref[nn.Module]
    found_group: bool = False
    "the process has had a default process group before vLLM started"


def stop(held: Held) -> None:
    """Stop the engine and free its memory. May be called twice. Errors of a failed engine are logged."""
    engine, held.engine = held.engine, None
    if engine is None:
        return
    pools = installed()
    if pools is not None:
        pools.keep_allocators()
    source = held.source()
    tensors = [] if source is None else [*source.parameters(), *source.buffers()]
    trainers = frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)
    _attempt(engine.collective_rpc, _let_go, kwargs={"trainers": trainers})
    with _default_group_kept() if held.found_group else nullcontext():
        _attempt(engine.engine_core.shutdown)
    del engine
    free_memory()


def free_memory() -> None:
    """Free what vLLM keeps for its next engine in this process, and all unreferenced memory."""
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


@contextmanager
def _default_group_kept() -> Iterator[None]:
    """vLLM's shutdown destroys the default process group, whoever made it. Inside the block only others can be."""
    destroy = torch.distributed.destroy_process_group

    def destroy_other(group: Any = None) -> None:
        if group is not None and group is not torch.distributed.group.WORLD:
            destroy(group)

    torch.distributed.destroy_process_group = destroy_other
    try:
        yield
    finally:
        torch.distributed.destroy_process_group = destroy


def _attempt(end: Callable[..., object], *arguments: object, **named: object) -> None:
    try:
        end(*arguments, **named)
    except Exception as error:
        _logger.debug("vLLM did not stop cleanly: %s", error)


def _let_go(worker: Any, *, trainers: frozenset[int]) -> None:
    """Free the storage of weights and cache even if referenced, and remove what torch.compile keeps of the model.

    `trainers` are storages of the trainer, which are not freed if a loader has adopted one.
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
    """Remove hooks, which hold the model, and compiled code, which its class holds."""
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
    """Clear tables, caches and the shared graph pool, which a later engine must not reuse.

    0.20 fills kept rotary tables with random numbers like weights, and PyTorch rejects a pool of destroyed graphs.
    """
    rotary = sys.modules.get("vllm.model_executor.layers.rotary_embedding")
    getattr(rotary, "_ROPE_DICT", {}).clear()
    supports_keyword = getattr(sys.modules.get("vllm.utils.func_utils"), "supports_kw", None)
    getattr(supports_keyword, "cache_clear", lambda: None)()
    platform: Any = type(getattr(sys.modules.get("vllm.platforms"), "_current_platform", None))
    if hasattr(platform, "_global_graph_pool"):
        platform._global_graph_pool = None


_installed: list[Pools] = []


class Pools:
    """vLLM's memory pools for sleep mode, made safe to free at any time, so that another engine can start.

    vLLM passes a freed block to its C extension, which unmaps it and corrupts its state if the block is not mapped:
    during sleep, and when vLLM has trimmed it while PyTorch still counts it (0.19 to 0.32). The wrapped callbacks map
    such a block again just before. vLLM also rejects a second engine while a block of the first remains. `asleep`
    holds the tags of sleeping memory.
    """

    def __init__(self, cumem: Any) -> None:
        """`cumem` is vLLM's module of the allocator."""
        self.asleep: set[str] = set()
        self._cumem = cumem
        self._allocator = cumem.CuMemAllocator.get_instance()
        self._handles: dict[int, Any] = {}
        self._left: dict[int, bool] = {}
        self._kept: list[Any] = []
        self._allocate, self._free = self._allocator.python_malloc_callback, self._allocator.python_free_callback
        self._allocator.python_malloc_callback = self._allocated
        self._allocator.python_free_callback = self._freed

    def keep_allocators(self) -> None:
        """Callbacks of freed pools stay alive, since PyTorch may still call them; they are a few bytes each."""
        for entry in self._allocator.allocator_and_pools.values():
            self._kept.extend(pair[1] for pair in (entry if isinstance(entry, list) else [entry]))

    def drop(self) -> None:
        """Release the pools, which then free unused memory. Memory still in use no longer counts as vLLM's."""
        self.keep_allocators()
        self._allocator.allocator_and_pools.clear()

    def disown(self) -> None:
        """Remaining blocks do not prevent another engine from starting."""
        left = self._allocator.pointer_to_data
        if left:
            num_bytes = sum(data.handle[1] for data in left.values())
            _logger.warning("%.0f MiB of vLLM's memory are still in use after it has ended", num_bytes / 2**20)
        self._left |= {pointer: self._is_mapped(data) for pointer, data in left.items()}
        left.clear()
        self.asleep.clear()

    def _allocated(self, handle: Any) -> None:
        self._handles[handle[2]] = handle
        self._allocate(handle)

    def _freed(self, pointer: int) -> Any:
        """The handle of a block, which is mapped."""
        handle, mapped = self._handles.pop(pointer), self._left.pop(pointer, False)
        data = self._allocator.pointer_to_data.get(pointer)
        if data is not None:
            mapped = self._is_mapped(data)
            self._free(pointer)
        if not mapped:
            self._map(handle)
        return handle

    def _is_mapped(self, data: Any) -> bool:
        return not getattr(data, "is_asleep", data.tag in self.asleep)

    def _map(self, handle: Any) -> None:
        """The C extension must get its handle even after an error here."""
        try:
            self._cumem.create_and_map(handle)
        except Exception as error:
            _logger.warning("vLLM's memory could not be mapped to be freed: %s", error)


def install() -> Pools | None:
    """Install the wrapper before the first engine of a process allocates; None if vLLM has no such allocator."""
    if not _installed and torch.cuda.is_available() and torch.version.hip is None:
        import vllm.device_allocator.cumem as cumem

        if cumem.cumem_available:
            _installed.append(Pools(cumem))
    return installed()


def installed() -> Pools | None:
    return _installed[0] if _installed else None
