"""vLLM's memory pools for sleep mode, made safe to free at any time, so that another engine can start.

vLLM passes a freed block to its C extension, which unmaps it and corrupts its state if the block is not mapped:
during sleep, and when vLLM has trimmed it while PyTorch still counts it (0.19 to 0.32). Here such a block is mapped
again just before. vLLM also rejects a second engine while a block of the first remains.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

_logger = logging.getLogger(__name__)
_installed: list[Pools] = []


class Pools:
    """Wraps the callbacks between vLLM's allocator and its C extension. `asleep` holds the tags of sleeping memory."""

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
