"""The interface between trainer and rollout engine: weights by name, with the policy version."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rl_compat.errors import ModelError
from rl_compat.resharding.handover import Handover


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


@runtime_checkable
class FillsStorage(Protocol):
    """A source that writes into a rollout's own storage itself, without whole weights in between."""

    def fill(self, targets: Mapping[str, Tensor], *, held: int | None = None) -> Handover:
        """Write the weights, or what changed since the version `held`. Raises ModelError for another model."""
        ...


@runtime_checkable
class StreamsWeights(Protocol):
    """A source that gives whole weights by name, few of which exist at a time, to an engine that copies them."""

    def stream(self, load: Callable[[Iterator[tuple[str, Tensor]]], None], *, dtype: torch.dtype) -> Handover:
        """Call `load` with all weights, in `dtype` where that takes fewer bytes to move."""
        ...


class WeightReceiver:
    """The weights that a rollout generates with, and whether they are one whole version of the policy."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._held: int | None = None
        self._released: dict[str, torch.Size] = {}
        self._problem: str | None = None

    def receive(self, source: WeightSource) -> Handover:
        """Take the newest weights: nothing if both sides share the storage, else in place, at the same addresses.

        `check` raises until `confirm` is called: after an error the weights may belong to two versions. Raises
        ModelError if the source has other weights than the model.
        """
        self._problem = "the last handover failed"
        if isinstance(source, SharedStorage) and source.model is self._model:
            return Handover(version=source.version, full_bytes=_num_bytes(self._model))
        self._allocate()
        held, self._held = self._held, None
        targets = dict(self._model.named_parameters())
        if isinstance(source, FillsStorage):
            handover = source.fill(targets, held=held)
        else:
            handover = _fill_one_by_one(targets, source)
        self._held = handover.version
        return handover

    @property
    def is_whole(self) -> bool:
        return self._problem is None

    def confirm(self) -> None:
        """The weights that were received are in use."""
        self._problem = None

    def check(self) -> None:
        """Raise ModelError unless the weights are whole."""
        if self._problem is not None:
            raise ModelError(f"the rollout has no complete weights: {self._problem}", hint="load them again")

    def release(self) -> None:
        """Free the storage until the next `receive`, which fills all of it, at other addresses."""
        for name, parameter in self._model.named_parameters():
            if not parameter.is_meta:
                self._released.setdefault(name, parameter.shape)
                parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
        self.lose("their storage was released")

    def lose(self, problem: str) -> None:
        """Let `check` raise until weights are received and confirmed."""
        self._held, self._problem = None, problem

    def _allocate(self) -> None:
        for name, shape in self._released.items():
            parameter = self._model.get_parameter(name)
            parameter.data = torch.empty(shape, dtype=parameter.dtype, device=parameter.device)
        self._released.clear()


def check_weights(targets: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> None:
    """Raise ModelError if a source's weights have other names or shapes than those of the rollout."""
    for name, shape in shapes.items():
        target = targets.get(name)
        if target is None or target.shape != shape:
            held = "no such weight" if target is None else f"shape {tuple(target.shape)}"
            raise ModelError(f"weight `{name}` has shape {tuple(shape)} and the rollout model has {held}")
    lacking = [name for name in targets if name not in shapes]
    if lacking:
        raise ModelError(f"the weight source lacks {len(lacking)} weights of the rollout model: `{lacking[0]}` …")


@torch.no_grad()
def _fill_one_by_one(targets: Mapping[str, Tensor], source: WeightSource) -> Handover:
    start, written, full = time.perf_counter(), 0, 0
    shapes: dict[str, torch.Size] = {}
    for name, tensor, version in source:
        assert version == source.version, f"`{name}` has version {version} and its source {source.version}"
        shapes[name] = tensor.shape
        check_weights({name: targets[name]} if name in targets else {}, {name: tensor.shape})
        full += tensor.nbytes
        if targets[name].data_ptr() != tensor.data_ptr():
            targets[name].copy_(tensor)
            written += targets[name].nbytes
    check_weights(targets, shapes)
    seconds = time.perf_counter() - start
    return Handover(
        version=source.version,
        num_weights=len(shapes),
        written_bytes=written,
        full_bytes=full,
        seconds=seconds,
        write_seconds=seconds,
    )


def _num_bytes(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())
