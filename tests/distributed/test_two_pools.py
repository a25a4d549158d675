"""Pools work at the same time, whether they have processes of their own or work in this one."""

from __future__ import annotations

import time
from itertools import combinations

import pytest

from rl_compat.distributed.group import WorkerGroup, dispatch
from rl_compat.distributed.pool import ResourcePool, start_without_device
from rl_compat.distributed.ranks import WorkerPlacement

pytest.importorskip("ray")

SECONDS = 3.0


class Sleeper:
    """A worker with one slow call."""

    def __init__(self, place: WorkerPlacement) -> None:
        del place

    @dispatch()
    def slow(self, *, seconds: float) -> tuple[float, float]:
        """When the call began and ended, by the clock that all processes of a machine share."""
        began = time.monotonic()
        time.sleep(seconds)
        return began, time.monotonic()


def overlap(first: tuple[float, float], second: tuple[float, float]) -> bool:
    return max(first[0], second[0]) < min(first[1], second[1])


def test_slow_calls_on_different_pools_overlap_and_those_on_one_pool_do_not() -> None:
    apart = [ResourcePool(gpus=[], num_processes=1) for _ in range(2)]
    groups: list[WorkerGroup[Sleeper]] = [pool.start(Sleeper) for pool in (*apart, ResourcePool(gpus=[]))]
    groups.append(start_without_device(Sleeper))
    try:
        calls = [group.run(Sleeper.slow, seconds=SECONDS) for group in groups]
        calls += [groups[0].run(Sleeper.slow, seconds=0.0)]
        *times, again = [call.result() for call in calls]
        assert [overlap(*pair) for pair in combinations(times, 2)] == [True] * 6
        assert again[0] >= times[0][1]
    finally:
        for pool in apart:
            pool.close()
