"""Peak memory by phase."""

from __future__ import annotations

import time

import pytest

from rl_compat.distributed.group import WorkerGroup, dispatch
from rl_compat.distributed.host import Usage
from rl_compat.distributed.local import Peak, take_host_calls
from rl_compat.distributed.pool import ResourcePool, start_without_device
from rl_compat.trainer.phases import PhaseMemory, pool_metrics, take_spans
from rl_compat.trainer.reporter import SilentReporter, Timer
from rl_compat.units import GIB


class Tape:
    """A gauge that reads given peaks one after the other; what happens between two phases peaks at 99 GiB."""

    def __init__(self, *allocated: int) -> None:
        self._left = [peak for phase in allocated for peak in (99, phase)]

    def __call__(self) -> Peak:
        allocated = self._left.pop(0) * GIB
        return Peak(allocated, 2 * allocated)


def test_the_largest_peak_of_a_phase_counts_and_a_new_step_starts_anew() -> None:
    memory = PhaseMemory(Tape(3, 5, 1, 2, 1), planned={"rollout": 4 * GIB})
    for phase in ("gen", "gen", "gen", "update_actor"):
        with memory(phase):
            pass
    metrics = memory.take_metrics()
    assert metrics["memory_gb/gen/allocated"] == 5
    assert metrics["memory_gb/gen/reserved"] == 10
    assert metrics["memory_gb/gen/planned"] == 4
    assert metrics["memory_gb/update_actor/allocated"] == 2
    assert metrics["actor/perf/max_memory_allocated_gb"] == 5
    with memory("gen"):
        pass
    assert memory.take_metrics()["memory_gb/gen/allocated"] == 1
    assert memory.take_metrics() == {}


def test_a_phase_that_raises_is_measured() -> None:
    memory = PhaseMemory(Tape(3), planned={})
    with pytest.raises(ValueError), memory("gen"):
        raise ValueError
    assert memory.take_metrics()["memory_gb/gen/reserved"] == 6


def test_on_a_cpu_nothing_is_measured() -> None:
    memory = PhaseMemory(lambda: None, planned={"rollout": 1})
    with memory("gen"):
        pass
    assert memory.take_metrics() == {}


def test_only_pools_with_processes_of_their_own_have_usage() -> None:
    class Processes(ResourcePool):
        def take_usage(self) -> Usage | None:
            return Usage(idle_share=0.25, heartbeat_age_seconds=0.5)

    pools = {"main": ResourcePool(gpus=[]), "score": Processes(gpus=[], num_processes=2)}
    assert pool_metrics(pools) == {"perf/idle_share/score": 0.25, "perf/heartbeat_age/score": 0.5}


def test_a_peak_counts_for_all_phases_that_run_at_its_time() -> None:
    peaks = iter([99, 1, 8, 2])
    memory = PhaseMemory(lambda: Peak(next(peaks) * GIB, 0), planned={})
    with memory("gen"), memory("update_actor"):
        pass
    metrics = memory.take_metrics()
    assert metrics["memory_gb/gen/allocated"] == 8
    assert metrics["memory_gb/update_actor/allocated"] == 8


class Model:
    version = 3

    @dispatch(split=("rows",))
    def update(self, *, rows: list[int]) -> list[int]:
        time.sleep(0.02)
        return rows

    @dispatch()
    def note(self) -> None:
        """Takes no time."""


def test_the_calls_on_pools_and_on_the_host_are_recorded_with_the_phases() -> None:
    pool, timer = ResourcePool(gpus=[]), Timer(SilentReporter())
    pool.take_calls()
    take_host_calls()
    on_pool: WorkerGroup[Model] = pool.start(lambda place: Model())
    on_host: WorkerGroup[Model] = start_without_device(lambda place: Model())
    with timer("update_actor", items=2):
        on_pool.run(Model.update, rows=[1, 2]).result()
        on_host.run(Model.update, rows=[1]).result()
        on_pool.run(Model.note).result()
    with timer.span("save", step=9):
        time.sleep(0.02)
    spans = take_spans(timer, {"main": pool}, step=5)
    assert [(span.name, span.lane, span.step, span.rows, span.version) for span in spans] == [
        ("update_actor", "MainThread", 5, 2, None),
        ("save", "MainThread", 9, None, None),
        ("Model.update", "main/0", 5, 2, 3),
        ("Model.update", "host/0", 5, 1, 3),
    ]
    phase, _, first, second = spans
    assert phase.start <= first.start < first.end <= second.start < second.end <= phase.end
    assert take_spans(timer, {"main": pool}, step=6) == []
