"""CUDA graphs of one decode step: captured at the first use of a shape, replayed from then on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

_WARM_UPS = 2
_logger = logging.getLogger(__name__)


class StepGraphs:
    """Graphs by shape key. They share one memory pool, since they never run at the same time and keep no results.

    A captured body may use only tensors with fixed addresses and must not wait for the device. A model whose forward
    waits cannot be captured: a warning is logged, and from then on bodies run without a graph.
    """

    def __init__(self) -> None:
        self.refused = False
        self._graphs: dict[Hashable, Any] = {}
        self._pool: Any = None
        self._stream: Any = None

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, key: Hashable, body: Callable[[], None], *, state: Sequence[Tensor]) -> None:
        """Run `body` once. `state` is the tensors that it advances, which are restored after a warm-up."""
        if key not in self._graphs and not self.refused:
            self._prepare(key, body, state)
        if self.refused:
            body()
        else:
            self._graphs[key].replay()

    def drop(self) -> None:
        """Drop all graphs and free their memory."""
        if self._graphs:
            self._graphs.clear()
            self._pool = None
            torch.cuda.empty_cache()

    def _prepare(self, key: Hashable, body: Callable[[], None], state: Sequence[Tensor]) -> None:
        if not all(tensor.is_cuda for tensor in state):
            self._refuse("the model is not on a CUDA device")
            return
        before = [tensor.clone() for tensor in state]
        try:
            # one stream for all warm-ups: cuBLAS keeps a workspace, 32 MiB on Hopper, for every stream it has used
            stream = self._stream = self._stream or torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UPS):
                    body()
            torch.cuda.current_stream().wait_stream(stream)
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                body()
            self._graphs[key] = graph
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._refuse(str(error).splitlines()[0])
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)

    def _refuse(self, reason: str) -> None:
        _logger.warning("rollout runs without CUDA graphs: %s", reason)
        self.refused = True
        self.drop()
