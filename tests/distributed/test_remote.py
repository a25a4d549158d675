"""Pools of several processes: calls on all of them, and what happens when one fails, ends or stands still."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from fakes.processes import ended

from rl_compat.distributed import remote
from rl_compat.distributed.group import WorkerGroup, dispatch
from rl_compat.distributed.pool import ResourcePool
from rl_compat.distributed.ranks import Ranks
from rl_compat.errors import ConfigError, HardwareError, RLCompatError, WorkerError
from rl_compat.hardware import cluster

pytest.importorskip("ray")


class Counter:
    """A worker whose second rank misbehaves on request."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    @dispatch(split=("rows",))
    def doubled(self, *, rows: list[int]) -> list[int]:
        return [2 * row for row in rows]

    @dispatch()
    def ranks_sum(self) -> float:
        return float(self.ranks.sum(torch.tensor(float(self.ranks.rank + 1))))

    @dispatch(merge=lambda results, shares: list(results))
    def process(self) -> tuple[int, int]:
        return os.getpid(), self.ranks.rank

    @dispatch()
    def all_raise(self) -> None:
        raise RLCompatError("all ranks say so", hint="and how to go on")

    @dispatch()
    def one_raises(self) -> float:
        if self.ranks.rank == 1:
            raise ValueError("bad row 17")
        return self.ranks_sum()

    @dispatch()
    def one_exits(self) -> float:
        if self.ranks.rank == 1:
            os._exit(3)
        return self.ranks_sum()

    @dispatch()
    def one_stops(self) -> float:
        if self.ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return self.ranks_sum()

    @dispatch()
    def fails(self, *, rank: int, how: str) -> float:
        if self.ranks.rank == rank:
            if how == "raises":
                raise ValueError("bad row 17")
            os.kill(os.getpid(), signal.SIGKILL)
        return self.ranks_sum()

    @dispatch()
    def busy(self, *, seconds: float) -> str:
        for _ in range(int(10 * seconds)):
            time.sleep(0.1)
        return "done"


@pytest.fixture
def pool() -> Iterator[ResourcePool]:
    pool = ResourcePool(gpus=[], num_processes=2)
    yield pool
    pool.close()


def started(pool: ResourcePool) -> WorkerGroup[Counter]:
    return pool.start(lambda place: Counter(place.ranks))


def test_two_processes_share_calls_until_one_fails_and_the_other_goes_on_alone(pool: ResourcePool) -> None:
    group = started(pool)
    processes = group.run(Counter.process).result()
    assert [rank for _, rank in processes] == [0, 1]
    assert len({process for process, _ in processes} | {os.getpid()}) == 3
    assert group.run(Counter.doubled, rows=[1, 2, 3, 4, 5]).result() == [2, 4, 6, 8, 10]
    assert group.run(Counter.doubled, rows=[7]).result() == [14]
    assert group.run(Counter.ranks_sum).result() == 3.0
    began = time.monotonic()
    pool.take_usage()
    assert group.run(Counter.busy, seconds=0.5).result() == "done"
    usage, seconds = pool.take_usage(), time.monotonic() - began
    assert usage is not None
    assert 0.0 <= usage.idle_share <= 1.0 - 0.5 / seconds
    assert usage.heartbeat_age_seconds < remote.SILENCE_SECONDS
    calls = {(rank, call.name, call.rows): call.end - call.start for rank, call in pool.take_calls()}
    assert {(0, "Counter.doubled", 3), (1, "Counter.doubled", 2), (1, "Counter.doubled", 0)} < set(calls)
    assert min(calls[rank, "Counter.busy", None] for rank in (0, 1)) >= 0.5
    other = started(pool)
    assert other.run(Counter.process).result() == processes, "roles of a pool share its processes"

    with pytest.raises(RLCompatError) as every:
        group.run(Counter.all_raise).result()
    assert every.value.hint == "and how to go on"
    assert group.run(Counter.ranks_sum).result() == 3.0, "an error of all ranks ends none of them"

    with pytest.raises(ValueError, match="17") as one:
        group.run(Counter.one_raises).result()
    assert any("rank 1" in note for note in one.value.__notes__)
    assert group.run(Counter.ranks_sum).result() == 1.0
    assert group.run(Counter.doubled, rows=[1, 2]).result() == [2, 4]
    pool.close()
    assert all(ended(process) for process, _ in processes)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "fact"), [(Counter.one_exits, "exit code 3"), (Counter.one_stops, "not answered")])
def test_a_process_that_ends_or_stands_still_is_named_with_its_call(
    pool: ResourcePool, monkeypatch: pytest.MonkeyPatch, method: object, fact: str
) -> None:
    """DIST-05"""
    monkeypatch.setattr(remote, "SILENCE_SECONDS", 5.0)
    group = started(pool)
    processes = group.run(Counter.process).result()
    assert group.run(Counter.busy, seconds=8.0).result() == "done", "a busy process is not accused"
    began = time.monotonic()
    with pytest.raises(WorkerError, match=fact) as error:
        group.run(method).result()  # type: ignore[arg-type]
    assert time.monotonic() - began < 30
    assert f"rank 1 (`{os.uname().nodename}`, process {processes[1][0]})" in error.value.message
    assert f"`{method.__qualname__}`" in error.value.message  # type: ignore[attr-defined]
    assert group.run(Counter.ranks_sum).result() == 1.0
    assert ended(processes[1][0])


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize("how", ["raises", "is killed"])
def test_the_first_cause_is_told_and_the_echoes_are_counted(rank: int, how: str) -> None:
    """DIST-06"""
    pool = ResourcePool(gpus=[], num_processes=4)
    try:
        group = started(pool)
        processes = group.run(Counter.process).result()
        with pytest.raises((ValueError, WorkerError)) as error:
            group.run(Counter.fails, rank=rank, how=how).result()
        if how == "raises":
            assert str(error.value) == "bad row 17"
            of_rank, echoes = error.value.__notes__
            assert f"rank {rank} " in of_rank and "`Counter.fails`" in of_rank
            assert echoes.startswith("3 other ranks")
        else:
            assert f"rank {rank} (" in str(error.value) and f"process {processes[rank][0]}" in str(error.value)
        assert group.run(Counter.ranks_sum).result() == 1.0
    finally:
        pool.close()
    assert all(ended(process) for process, _ in processes)


@pytest.mark.slow
def test_a_process_that_ends_stops_who_waits_for_another_pool_and_else_the_next_call(pool: ResourcePool) -> None:
    group = started(pool)
    processes = group.run(Counter.process).result()
    other_pool = ResourcePool(gpus=[], num_processes=2)
    try:
        other = started(other_pool)
        others = other.run(Counter.process).result()
        waiting = other.run(Counter.busy, seconds=60.0)
        os.kill(processes[1][0], signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(WorkerError, match=f"process {processes[1][0]}"):
            waiting.result()
        assert time.monotonic() - began < 30
        assert group.run(Counter.ranks_sum).result() == 1.0

        os.kill(others[0][0], signal.SIGKILL)
        assert ended(others[0][0])
        time.sleep(3 * remote.BEAT_SECONDS)
        with pytest.raises(WorkerError, match=f"process {others[0][0]}"):
            group.run(Counter.ranks_sum).result()
    finally:
        other_pool.close()
    assert all(ended(process) for process, _ in others)


def test_wrong_numbers_of_processes_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_processes"):
        ResourcePool(gpus=[], num_processes=0)
    with pytest.raises(ConfigError, match="num_processes"):
        ResourcePool(gpus=[0, 1], num_processes=3)
    with pytest.raises(ConfigError, match="num_nodes"):
        ResourcePool(gpus=[0], num_nodes=2)
    with pytest.raises(ConfigError, match="gpus"):
        ResourcePool(address="10.0.0.1:6379")
    with pytest.raises(ConfigError, match="address"):
        ResourcePool(gpus=[0], nodes=["10.0.0.2"])
    for nodes in (["10.0.0.2"], ["10.0.0.2", "10.0.0.2"], "10.0.0.2"):
        with pytest.raises(ConfigError, match="nodes"):
            ResourcePool(gpus=[0], num_nodes=2, address="10.0.0.1:6379", nodes=nodes)


def test_ray_is_started_again_when_it_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def init(address: str, **options: object) -> None:
        calls.append(address)
        if calls.count("local") < 3:
            raise Exception("The current node timed out during startup.")

    ray = SimpleNamespace(init=init, shutdown=lambda: calls.append("shutdown"), is_initialized=lambda: False)
    monkeypatch.setattr(cluster, "import_ray", lambda: ray)
    assert cluster.connect(None) is ray
    assert calls == ["local", "shutdown", "local", "shutdown", "local"]
    calls[:] = []
    monkeypatch.setattr(cluster, "STARTS", 2)
    with pytest.raises(HardwareError):
        cluster.connect(None)
