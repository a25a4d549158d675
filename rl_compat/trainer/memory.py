"""Measured peak memory of each phase of a step, next to the planned one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, Self

import torch

from rl_compat.planning.types import PoolPlan
from rl_compat.units import GIB

PLANNED_PHASE = {
    "testing": "evaluation",
    "gen": "rollout",
    "gen_max": "rollout",
    "reward": "reward",
    "cost": "cost",
    "old_log_prob": "logprobs",
    "ref": "reference",
    "values": "values",
    "cost_values": "cost_values",
    "update_critic": "critic_update",
    "update_cost_critic": "cost_critic_update",
    "update_actor": "actor_update",
}
"timer phase to plan phase"


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak memory of a device."""

    allocated: int
    "allocated by tensors"
    reserved: int
    "reserved by torch's allocator"

    def largest(self, other: Peak) -> Peak:
        return Peak(max(self.allocated, other.allocated), max(self.reserved, other.reserved))


class Gauge(Protocol):
    """Measures the peak of one device."""

    def reset(self) -> None: ...

    def read(self) -> Peak:
        """The peak since the last reset."""
        ...


@dataclass(frozen=True, slots=True)
class CudaGauge:
    device: str

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def read(self) -> Peak:
        return Peak(torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device))


class PhaseMemory:
    """The largest peak of each phase since the last `take`. Without a gauge (on the CPU), nothing is measured.

    Each worker on a shared device has its own instance; `peak_metrics` combines them.
    """

    def __init__(self, gauge: Gauge | None, *, planned: Mapping[str, int]) -> None:
        """`planned` maps plan phases to bytes."""
        self._gauge = gauge
        self._planned = planned
        self._peaks: dict[str, Peak] = {}

    @classmethod
    def of_pool(cls, pool: PoolPlan) -> Self:
        gauge = None if pool.device == "cpu" else CudaGauge(pool.device)
        return cls(gauge, planned={budget.phase: budget.total_bytes for budget in pool.budgets})

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Measure the block as `phase`, even if it raises."""
        if self._gauge is None:
            yield
            return
        self._gauge.reset()
        try:
            yield
        finally:
            peak = self._gauge.read()
            self._peaks[phase] = peak.largest(self._peaks.get(phase, peak))

    def take(self) -> dict[str, Peak]:
        """The peaks by phase since the last call."""
        peaks, self._peaks = self._peaks, {}
        return peaks

    def take_metrics(self) -> dict[str, float]:
        """The peaks since the last call, as metrics."""
        return peak_metrics([self.take()], planned=self._planned)


def peak_metrics(workers: Sequence[Mapping[str, Peak]], *, planned: Mapping[str, int]) -> dict[str, float]:
    """GiB by phase: allocated and reserved (the maximum over workers), and planned."""
    largest: dict[str, Peak] = {}
    for peaks in workers:
        for phase, peak in peaks.items():
            largest[phase] = peak.largest(largest.get(phase, peak))
    metrics = {}
    for phase, peak in largest.items():
        metrics[f"memory_gb/{phase}/allocated"] = peak.allocated / GIB
        metrics[f"memory_gb/{phase}/reserved"] = peak.reserved / GIB
        bytes_planned = planned.get(PLANNED_PHASE.get(phase, ""))
        if bytes_planned is not None:
            metrics[f"memory_gb/{phase}/planned"] = bytes_planned / GIB
    if largest:
        metrics["actor/perf/max_memory_allocated_gb"] = max(peak.allocated for peak in largest.values()) / GIB
        metrics["actor/perf/max_memory_reserved_gb"] = max(peak.reserved for peak in largest.values()) / GIB
    return metrics
