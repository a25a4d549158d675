"""Measured peak memory of each phase, beside what was planned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rl_compat.planning.types import PoolPlan

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
"timer phase to phase of the plan"


class PhaseMemory:
    """Peak bytes that torch allocated and reserved on the device, by phase. Measures nothing on a CPU."""

    def __init__(self, pool: PoolPlan) -> None:
        self._device = None if pool.device == "cpu" else torch.device(pool.device)
        self._planned = {budget.phase: budget.total_bytes for budget in pool.budgets}
        self._allocated: dict[str, int] = {}
        self._reserved: dict[str, int] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Measure the block as `phase`."""
        if self._device is None:
            yield
            return
        torch.cuda.reset_peak_memory_stats(self._device)
        yield
        self._allocated[phase] = torch.cuda.max_memory_allocated(self._device)
        self._reserved[phase] = torch.cuda.max_memory_reserved(self._device)

    def metrics(self) -> dict[str, float]:
        """GiB by phase: allocated, reserved, and planned."""
        gib = 1024**3
        metrics = {}
        for phase, allocated in self._allocated.items():
            metrics[f"memory_gb/{phase}/allocated"] = allocated / gib
            metrics[f"memory_gb/{phase}/reserved"] = self._reserved[phase] / gib
            planned = self._planned.get(PLANNED_PHASE.get(phase, ""))
            if planned is not None:
                metrics[f"memory_gb/{phase}/planned"] = planned / gib
        if self._allocated:
            metrics["actor/perf/max_memory_allocated_gb"] = max(self._allocated.values()) / gib
            metrics["actor/perf/max_memory_reserved_gb"] = max(self._reserved.values()) / gib
        return metrics
