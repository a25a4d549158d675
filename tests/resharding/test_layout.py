"""The parts that ranks hold, compared with those of torch."""

from __future__ import annotations

import pytest
import torch

from rl_compat.resharding.layout import Division, Placement, RankMesh

SHAPE = (5, 6)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
def test_parts_are_the_chunks_of_torch_and_may_be_empty(num_ranks: int) -> None:
    placement = Placement(RankMesh.line(range(num_ranks)), (Division("data", 0),))
    chunks = torch.arange(5).chunk(num_ranks)
    for rank in range(num_ranks):
        (start, stop), columns = placement.box(SHAPE, rank)
        assert columns == (0, 6)
        assert list(range(start, stop)) == (chunks[rank].tolist() if rank < len(chunks) else [])
    assert len(placement.holders(SHAPE)) == len(chunks)


def test_a_later_division_cuts_what_an_earlier_one_has_left() -> None:
    mesh = RankMesh((("data", 2), ("tensor", 2)), (4, 5, 6, 7))
    placement = Placement(mesh, (Division("tensor", 0), Division("data", 0)))
    assert [placement.box(SHAPE, rank)[0] for rank in mesh.ranks] == [(0, 2), (3, 4), (2, 3), (4, 5)]


def test_a_weight_is_replicated_along_the_axes_that_do_not_divide_it() -> None:
    mesh = RankMesh((("replica", 2), ("data", 2)), (3, 1, 0, 2))
    assert Placement(mesh).holders(SHAPE) == {((0, 5), (0, 6)): (0, 1, 2, 3)}
    halves = Placement(mesh, (Division("data", 1),)).holders(SHAPE)
    assert halves == {((0, 5), (0, 3)): (0, 3), ((0, 5), (3, 6)): (1, 2)}
