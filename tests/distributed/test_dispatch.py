"""Worker methods are split, broadcast and merged as they declare."""

from __future__ import annotations

import pytest
import torch

from rl_compat.distributed.dispatch import dispatch, split_rows
from rl_compat.distributed.local import LocalWorkerGroup
from rl_compat.distributed.pool import ResourcePool
from rl_compat.errors import HardwareError


class Adder:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    @dispatch(split=("rows",), merge="concat")
    def add(self, *, rows: list[int], amount: int) -> list[int]:
        return [row + amount for row in rows]

    @dispatch(split=("rows",), merge="concat")
    def tensor(self, *, rows: list[int]) -> torch.Tensor:
        return torch.ones(len(rows), 1 + self.rank)

    @dispatch(merge="mean")
    def metrics(self) -> dict[str, float]:
        return {"rank": float(self.rank)}

    def rank_of_first(self) -> int:
        return self.rank

    def fails(self) -> None:
        raise ValueError("from the worker")


@pytest.fixture
def group() -> LocalWorkerGroup[Adder]:
    return LocalWorkerGroup([Adder(0), Adder(1)])


def test_split_rows_come_back_in_order(group: LocalWorkerGroup[Adder]) -> None:
    assert group.run(Adder.add, rows=[1, 2, 3, 4, 5], amount=10).result() == [11, 12, 13, 14, 15]


def test_tensors_of_different_width_are_padded_and_joined(group: LocalWorkerGroup[Adder]) -> None:
    joined = group.run(Adder.tensor, rows=[1, 2, 3]).result()
    assert joined.tolist() == [[1.0, 0.0], [1.0, 1.0], [1.0, 1.0]]


def test_means_and_first_results(group: LocalWorkerGroup[Adder]) -> None:
    assert group.run(Adder.metrics).result() == {"rank": 0.5}
    assert group.run(Adder.rank_of_first).result() == 0


def test_an_error_of_a_worker_comes_out_of_the_future(group: LocalWorkerGroup[Adder]) -> None:
    future = group.run(Adder.fails)
    with pytest.raises(ValueError, match="from the worker"):
        future.result()


def test_parts_differ_by_at_most_one_row() -> None:
    assert [len(part) for part in split_rows(list(range(10)), 3)] == [3, 3, 4]


def test_a_pool_refuses_more_gpus_than_it_can_use() -> None:
    with pytest.raises(HardwareError, match="2 GPUs"):
        ResourcePool(gpus=[0, 1])
