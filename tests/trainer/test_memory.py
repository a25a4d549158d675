"""Peak memory by phase."""

from __future__ import annotations

import pytest

from rl_compat.trainer.memory import Peak, PhaseMemory, peak_metrics
from rl_compat.units import GIB


class Tape:
    """A gauge that reads given peaks one after the other."""

    def __init__(self, *allocated: int) -> None:
        self._left = list(allocated)
        self.resets = 0

    def reset(self) -> None:
        self.resets += 1

    def read(self) -> Peak:
        allocated = self._left.pop(0) * GIB
        return Peak(allocated, 2 * allocated)


def test_the_largest_peak_of_a_phase_counts_and_a_new_step_starts_anew() -> None:
    tape = Tape(3, 5, 1, 2, 1)
    memory = PhaseMemory(tape, planned={"rollout": 4 * GIB})
    for phase in ("gen", "gen", "gen", "update_actor"):
        with memory(phase):
            pass
    metrics = memory.take_metrics()
    assert tape.resets == 4
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
    assert memory.take() == {"gen": Peak(3 * GIB, 6 * GIB)}


def test_the_worker_with_the_most_counts() -> None:
    workers = [{"gen": Peak(2 * GIB, 3 * GIB)}, {"gen": Peak(GIB, 4 * GIB), "ref": Peak(GIB, GIB)}]
    metrics = peak_metrics(workers, planned={})
    assert (metrics["memory_gb/gen/allocated"], metrics["memory_gb/gen/reserved"]) == (2, 4)
    assert metrics["memory_gb/ref/allocated"] == 1


def test_without_a_gauge_nothing_is_measured() -> None:
    memory = PhaseMemory(None, planned={"rollout": 1})
    with memory("gen"):
        pass
    assert memory.take_metrics() == {}
