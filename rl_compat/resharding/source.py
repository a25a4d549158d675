"""The interface between trainer and rollout engine: weights by name, with the policy version."""

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
    "name of the parameter in the trainer's model"
    tensor: Tensor
    version: int
    "version of the policy that the tensor belongs to"


class WeightSource(Protocol):
    """The weights of a policy, one tensor at a time."""

    @property
    def version(self) -> int: ...

    @property
    def revision(self) -> int:
        """A number that changes whenever the weights change."""
        ...

    def __iter__(self) -> Iterator[Weight]: ...

    def resident(self) -> AbstractContextManager[None]:
        """Inside the context, the tensors are on the device that generates."""
        ...


class SharedStorage:
    """The trainer's own tensors, for an engine in the same process, without a copy."""

    def __init__(
        self,
        model: nn.Module,
        *,
        version: int,
        resident: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`resident` is a context that moves weights to the device if the plan offloads idle ones."""
        self.model = model
        self.resident = resident
        self.version = version
        self.revision = 0

    def changed(self, *, version: int) -> None:
        """Record that the weights have changed."""
        self.version, self.revision = version, self.revision + 1

    def __iter__(self) -> Iterator[Weight]:
        return (Weight(name, parameter, self.version) for name, parameter in self.model.named_parameters())


@torch.no_grad()
def receive(model: nn.Module, source: WeightSource) -> int:
    """Update a model's parameters from a source; returns the bytes copied, 0 if both share storage.

    Raises ModelError if the source lacks a parameter of the model, or has one of another name or shape; earlier
    weights have then already been copied.
    """
    if isinstance(source, SharedStorage) and source.model is model:
        return 0
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
