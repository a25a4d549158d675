"""What a trainer offers to the engines that generate: its weights by name, with the version of the policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from rl_compat.errors import ModelError


class Weight(NamedTuple):
    """One tensor of a policy."""

    name: str
    "of the parameter in the trainer's model"
    tensor: Tensor
    version: int
    "optimizer updates of the policy that the tensor belongs to"


class WeightSource(Protocol):
    """The weights of a policy, one tensor at a time."""

    @property
    def version(self) -> int: ...

    @property
    def revision(self) -> int:
        """A number that differs whenever the weights do."""
        ...

    def __iter__(self) -> Iterator[Weight]: ...

    def resident(self) -> AbstractContextManager[None]:
        """Inside, the tensors are on the device that generates."""
        ...


class SharedStorage:
    """The trainer's own tensors, for an engine in the same process: nothing is copied."""

    def __init__(
        self,
        model: nn.Module,
        *,
        version: int,
        resident: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`resident` brings the weights to the device and back where the plan offloads idle ones."""
        self.model = model
        self.resident = resident
        self.version = version
        self.revision = 0

    def changed(self, *, version: int) -> None:
        """Note that the weights are others than before."""
        self.version, self.revision = version, self.revision + 1

    def __iter__(self) -> Iterator[Weight]:
        return (Weight(name, parameter, self.version) for name, parameter in self.model.named_parameters())


@torch.no_grad()
def receive(model: nn.Module, source: WeightSource) -> int:
    """Bring a model's parameters up to date with a source; returns the bytes copied, 0 where both share storage.

    Raises ModelError when the source lacks a parameter of the model or holds one of another name or shape; weights
    that came before it have then been copied.
    """
    own = dict(model.named_parameters())
    copied = 0
    for name, tensor, version in source:
        assert version == source.version, f"`{name}` has version {version} and its source {source.version}"
        target = own.pop(name, None)
        if target is None or target.shape != tensor.shape:
            held = "no such weight" if target is None else f"shape {tuple(target.shape)}"
            raise ModelError(f"weight `{name}` has shape {tuple(tensor.shape)} and the rollout model has {held}")
        if target.data_ptr() != tensor.data_ptr():
            target.copy_(tensor)
            copied += target.nbytes
    if own:
        raise ModelError(f"the weight source lacks {len(own)} weights of the rollout model: `{next(iter(own))}` …")
    return copied
