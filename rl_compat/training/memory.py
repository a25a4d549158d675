"""Device memory: optimizer states and idle weights in host memory, and what happens when the device runs out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from rl_compat.models.parts import is_shared, local

BUCKET_BYTES = 256 * 1024**2


def _host_copy(tensor: Tensor) -> Tensor:
    """An uninitialized tensor of the same shape on the host, pinned if a GPU copies to it."""
    pin = tensor.device.type == "cuda"
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pin)


class OffloadedOptimizer:
    """An optimizer whose states and fp32 parameters are kept and updated on the host.

    Host memory holds the inner optimizer's state, a copy of the parameters, and the gradients of one bucket.
    `build` makes the inner optimizer from the host parameters.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        build: Callable[[Mapping[str, nn.Parameter]], torch.optim.Optimizer],
        *,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._pairs = [(p, nn.Parameter(torch.empty_like(local(p), device="cpu"))) for p in parameters.values()]
        self._bucket_bytes = bucket_bytes
        self.read_parameters()
        self.inner = build({name: host for name, (_, host) in zip(parameters, self._pairs, strict=True)})

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups

    @torch.no_grad()
    def read_parameters(self) -> None:
        """Copy the device's parameters to the host after loading them from a file."""
        for parameter, host in self._pairs:
            host.copy_(local(parameter))

    @torch.no_grad()
    def step(self) -> None:
        """One update from the device's gradients, which are freed bucket by bucket."""
        for bucket in self._buckets():
            for parameter, host in bucket:
                assert parameter.grad is not None
                grad = local(parameter.grad)
                host.grad = _host_copy(grad).copy_(grad)
                parameter.grad = None
            self.inner.step()
            for parameter, host in bucket:
                host.grad = None
                local(parameter).copy_(host)

    def _buckets(self) -> Iterator[list[tuple[nn.Parameter, nn.Parameter]]]:
        bucket: list[tuple[nn.Parameter, nn.Parameter]] = []
        size = 0
        for parameter, host in self._pairs:
            if parameter.grad is None:
                continue
            bucket.append((parameter, host))
            size += host.nbytes
            if size >= self._bucket_bytes:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


class HostWeights:
    """The weights of a model, moved to the host while it is idle.

    Parameters keep their identity: only their data moves, so optimizers, tied weights and a rollout engine that
    shares the tensors see them again afterwards. Weights that do not change are copied to the host once.
    """

    def __init__(self, model: nn.Module, device: str) -> None:
        self._model = model
        self._device = torch.device(device)
        self._host: dict[str, Tensor] = {}
        self._storage_bytes: dict[str, int] = {}
        "of the parts of tensors that ranks share"
        self.away = False

    def offload(self) -> None:
        """Free the device's copy. There must be no gradients."""
        if self.away:
            return
        for name, tensor in self._tensors():
            host, data = self._host.get(name), local(tensor.data)
            if host is None or tensor.requires_grad:
                host = _host_copy(data) if host is None else host
                self._host[name] = host.copy_(data)
            if is_shared(tensor):  # FSDP has views of the same memory
                self._storage_bytes[name] = data.untyped_storage().nbytes()
                data.untyped_storage().resize_(0)
            else:
                tensor.data = host
        self.away = True

    def onload(self) -> None:
        """Move the weights back to the device."""
        if not self.away:
            return
        for name, tensor in self._tensors():
            if is_shared(tensor):
                data = local(tensor.data)
                data.untyped_storage().resize_(self._storage_bytes[name])
                data.copy_(self._host[name])
            else:
                tensor.data = tensor.data.to(self._device, copy=True)
        self.away = False

    def _tensors(self) -> list[tuple[str, Tensor]]:
        return [*self._model.named_parameters(), *self._model.named_buffers()]


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Done(Generic[Result]):
    value: Result


def unless_out_of_memory(work: Callable[[], Result]) -> Done[Result] | None:
    """The result of `work`, or None if the device ran out of memory; everything that it allocated is then free."""
    try:
        return Done(work())
    except torch.OutOfMemoryError:
        pass
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None
