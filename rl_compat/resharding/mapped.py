"""Weights that a rollout reads where the policy has them: GPUs of one machine, by CUDA IPC between processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from rl_compat.resharding.handover import Handover, PhaseClock
from rl_compat.resharding.layout import Box, num_elements
from rl_compat.resharding.sharded import ShardedSource
from rl_compat.resharding.source import Weight, check_weights


class SharedTensor:
    """A tensor on a GPU. What is pickled is its address, which another process of the machine opens."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor: Tensor | None = tensor
        self._address: tuple[Callable[..., Tensor], tuple[Any, ...]] | None = None

    def __getstate__(self) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
        if self._address is None:
            self._address = reduce_tensor(self._tensor)
        return self._address

    def __setstate__(self, address: tuple[Callable[..., Tensor], tuple[Any, ...]]) -> None:
        self._tensor, self._address = None, address

    def open(self) -> Tensor:
        """The tensor, in the memory of the process that made it."""
        if self._tensor is None:
            assert self._address is not None
            rebuild, arguments = self._address
            self._tensor = rebuild(*arguments)
        return self._tensor


@dataclass(frozen=True, slots=True)
class MappedPart:
    """A part of a weight on one rank of the policy."""

    weight: str
    box: Box
    holder: int
    "rank"
    tensor: SharedTensor


@dataclass(frozen=True, slots=True)
class MappedWeights:
    """Where a version of the policy is. The weights do not change while a rollout reads them."""

    version: int
    shapes: Mapping[str, tuple[int, ...]]
    trained: frozenset[str]
    parts: tuple[MappedPart, ...]
    "those that have moved since the version before"


class WeightMapper:
    """Tells where one rank has its parts."""

    def __init__(self, source: ShardedSource) -> None:
        self._source = source
        self._told: dict[str, int] = {}
        "addresses, by weight"

    def publish(self, *, version: int) -> MappedWeights:
        """The parts of this rank; `joined_parts` joins what all ranks return."""
        source, moved = self._source, []
        for name, part in source.parts().items():
            if self._told.get(name) != part.tensor.data_ptr() and part.tensor.numel() > 0:
                self._told[name] = part.tensor.data_ptr()
                moved.append(MappedPart(name, part.box, source.rank, SharedTensor(part.tensor)))
            if part.tensor.is_cuda:
                torch.cuda.current_stream(part.tensor.device).synchronize()
        return MappedWeights(version, source.shapes(), source.trained, tuple(moved))


def joined_parts(ranks: Sequence[MappedWeights]) -> MappedWeights:
    """The parts of all ranks."""
    return replace(ranks[0], parts=tuple(part for one in ranks for part in one.parts))


class MappedSource:
    """The weights of a policy whose GPUs are in the same machine, without a copy in between."""

    def __init__(self, rank: int = 0) -> None:
        """`rank` of the rollout: ranks read from different holders of the same part."""
        self.revision = 0
        self._rank = rank
        self._offered: MappedWeights | None = None
        self._parts: dict[str, dict[tuple[Box, int], SharedTensor]] = {}

    @property
    def version(self) -> int:
        return self._newest.version

    def offer(self, published: MappedWeights) -> None:
        """Announce a version."""
        for part in published.parts:
            self._parts.setdefault(part.weight, {})[part.box, part.holder] = part.tensor
        self._offered = published
        self.revision += 1

    def resident(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __iter__(self) -> Iterator[Weight]:
        """Whole weights: the policy's own tensors, or new ones where ranks share them."""
        return (Weight(name, self._whole(name, None), self.version) for name in self._newest.shapes)

    def stream(self, load: Callable[[Iterator[tuple[str, Tensor]]], None], *, dtype: torch.dtype) -> Handover:
        """Give whole weights to a function, one at a time. Engines convert them as they copy."""
        del dtype
        clock, sizes = PhaseClock(self._device), dict[str, int]()

        def weights() -> Iterator[tuple[str, Tensor]]:
            for name, tensor, _ in self:
                sizes[name] = tensor.nbytes
                yield name, tensor

        with clock("write"):
            load(weights())
        assembled = [sizes[name] for name, parts in self._parts.items() if len(self._boxes(parts)) > 1]
        return self._record(sum(sizes.values()), len(sizes), clock, peak_bytes=max(assembled, default=0))

    @torch.no_grad()
    def fill(self, targets: Mapping[str, Tensor], *, held: int | None = None) -> Handover:
        """Write the weights into a rollout's own storage; frozen ones only if it holds no version.

        Raises ModelError, before anything is written, if the storage is that of another model.
        """
        offered = self._newest
        check_weights(targets, {name: torch.Size(shape) for name, shape in offered.shapes.items()})
        names = offered.shapes if held is None else offered.trained
        clock = PhaseClock(self._device)
        with clock("write"):
            for name in names:
                self._whole(name, targets[name].detach())
        for device in {self._device, *(target.device for target in targets.values())}:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        return self._record(sum(targets[name].nbytes for name in names), len(names), clock)

    def _record(self, num_bytes: int, num_weights: int, clock: PhaseClock, *, peak_bytes: int = 0) -> Handover:
        seconds = clock.seconds()  # waits until everything has been read
        full = sum(part.open().nbytes for parts in self._parts.values() for part in self._boxes(parts).values())
        return Handover(
            version=self.version,
            num_weights=num_weights,
            received_bytes=num_bytes,
            written_bytes=num_bytes,
            peak_bytes=peak_bytes,
            full_bytes=full,
            **seconds,
        )

    def _whole(self, name: str, target: Tensor | None) -> Tensor:
        """A weight, written into `target` if there is one."""
        shape, boxes = self._newest.shapes[name], self._boxes(self._parts[name])
        assert sum(map(num_elements, boxes)) == torch.Size(shape).numel(), f"`{name}` has parts that nobody holds"
        parts = {box: part.open() for box, part in boxes.items()}
        if target is None:
            if len(parts) == 1:
                return next(iter(parts.values()))
            target = torch.empty(shape, dtype=next(iter(parts.values())).dtype, device=self._device)
        for box, part in parts.items():
            target[tuple(slice(start, stop) for start, stop in box)].copy_(part)
        return target

    def _boxes(self, parts: Mapping[tuple[Box, int], SharedTensor]) -> dict[Box, SharedTensor]:
        """Every part once, from one of its holders."""
        holders: dict[Box, list[SharedTensor]] = {}
        for (box, _), part in sorted(parts.items(), key=lambda item: item[0]):
            holders.setdefault(box, []).append(part)
        return {box: found[self._rank % len(found)] for box, found in holders.items()}

    @property
    def _device(self) -> torch.device:
        return next(iter(next(iter(self._parts.values())).values())).open().device

    @property
    def _newest(self) -> MappedWeights:
        assert self._offered is not None, "no version has been offered"
        return self._offered
