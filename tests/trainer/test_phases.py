"""Peak memory by phase."""

from __future__ import annotations

import pytest

from rl_compat.distributed.host import Usage
from rl_compat.distributed.pool import ResourcePool
from rl_compat.trainer.phases import Peak, PhaseMemory, pool_metrics
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
