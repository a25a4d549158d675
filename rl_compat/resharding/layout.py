"""Layouts as data: which part of each weight is on which rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

Box = tuple[tuple[int, int], ...]
"a part of a tensor: a half-open range per dimension"
WeightLayout = Mapping[str, "Placement"]
"where every weight of a model is, by name"


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A weight as it is moved: the order of specs is the order of the handover, layer by layer."""

    name: str
    shape: tuple[int, ...]
    itemsize: int
    "bytes of an element in the dtype that is moved"

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True)
class RankMesh:
    """Ranks along named axes, such as data × tensor. Two meshes may share all ranks, some, or none."""

    axes: tuple[tuple[str, int], ...]
    "names and sizes, the slowest-varying axis first"
    ranks: tuple[int, ...]
    "numbers of the processes, in the order of the axes"

    def __post_init__(self) -> None:
        assert math.prod(size for _, size in self.axes) == len(set(self.ranks)) == len(self.ranks)

    @classmethod
    def line(cls, ranks: Iterable[int], axis: str = "data") -> RankMesh:
        """Ranks along one axis."""
        ranks = tuple(ranks)
        return cls(((axis, len(ranks)),), ranks)

    @cached_property
    def coordinates(self) -> dict[int, dict[str, int]]:
        """The place of each rank along each axis."""
        places: dict[int, dict[str, int]] = {}
        for number, rank in enumerate(self.ranks):
            place: dict[str, int] = {}
            for axis, size in reversed(self.axes):
                number, place[axis] = divmod(number, size)
            places[rank] = place
        return places


@dataclass(frozen=True, slots=True)
class Division:
    """A dimension divided along an axis as `torch.chunk` does: the last parts are smaller, or empty."""

    axis: str
    dim: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A weight on the ranks of a mesh: replicated along every axis that does not divide it."""

    mesh: RankMesh
    divisions: tuple[Division, ...] = ()
    "each divides what the one before it has left"

    def box(self, shape: tuple[int, ...], rank: int) -> Box:
        """The part that a rank of the mesh holds."""
        place, sizes = self.mesh.coordinates[rank], dict(self.mesh.axes)
        box = [(0, size) for size in shape]
        for division in self.divisions:
            start, stop = box[division.dim]
            step = -(-(stop - start) // sizes[division.axis])
            first = min(start + place[division.axis] * step, stop)
            box[division.dim] = (first, min(first + step, stop))
        return tuple(box)

    def holders(self, shape: tuple[int, ...]) -> dict[Box, tuple[int, ...]]:
        """Every part that is not empty, with the ranks that hold it, ascending. The parts do not overlap."""
        found: dict[Box, list[int]] = {}
        for rank in self.mesh.ranks:
            box = self.box(shape, rank)
            if num_elements(box):
                found.setdefault(box, []).append(rank)
        return {box: tuple(sorted(ranks)) for box, ranks in found.items()}


def whole(names: Iterable[str], mesh: RankMesh) -> dict[str, Placement]:
    """The layout with every weight whole on every rank."""
    return dict.fromkeys(names, Placement(mesh))


def num_elements(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)


def intersection(one: Box, other: Box) -> Box | None:
    """The part that two parts of a tensor share, None if they share no element."""
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return shared if all(start < stop for start, stop in shared) else None
