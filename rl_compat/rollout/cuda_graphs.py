"""CUDA graphs of one decode step: captured at the first use of a shape, replayed ever after."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

_WARM_UPS = 2


class StepGraphs:
    """Graphs by shape key, sharing one memory pool: they never run at the same time and keep no result of their own.

    A captured body may touch only tensors that stay where they are, and must not wait for the device.
    """

    def __init__(self) -> None:
        self._graphs: dict[Hashable, Any] = {}
        self._pool: Any = None

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, key: Hashable, body: Callable[[], None], *, state: Sequence[Tensor]) -> None:
        """Run `body` once. `state` is what it advances: the warm-up before a capture must leave it as it was."""
        if key not in self._graphs:
            self._warm_up(body, state)
            self._graphs[key] = self._capture(body)
        self._graphs[key].replay()

    def drop(self) -> None:
        """Forget all graphs and give their memory back."""
        self._graphs.clear()
        self._pool = None

    def _warm_up(self, body: Callable[[], None], state: Sequence[Tensor]) -> None:
        before = [tensor.clone() for tensor in state]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                body()
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)

    def _capture(self, body: Callable[[], None]) -> Any:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            body()
        return graph
