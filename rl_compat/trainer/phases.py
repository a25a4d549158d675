"""Seconds and peak memory of each phase of a step, next to the planned memory, and what ran when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

from rl_compat.distributed.local import Peak, take_host_calls
from rl_compat.distributed.pool import ResourcePool
from rl_compat.tracking.timeline import Span
from rl_compat.trainer.reporter import Reporter, Timer
from rl_compat.units import GIB
from rl_compat.workers.setup import Setup

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


Gauge = Callable[[], Peak | None]
"returns the peak of the devices since the last call; None on a CPU"


class PhaseMemory:
    """The largest peak of each phase since the last `take_metrics`; nothing on the CPU.

    A peak counts for every phase that runs at that time, in whatever thread.
    """

    def __init__(self, gauge: Gauge, *, planned: Mapping[str, int]) -> None:
        """`planned` maps plan phases to bytes."""
        self._gauge = gauge
        self._planned = planned
        self._peaks: dict[str, Peak] = {}
        self._running: list[str] = []
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Measure the block as `phase`, even if it raises."""
        with self._lock:
            self._read()
            self._running.append(phase)
        try:
            yield
        finally:
            with self._lock:
                self._read()
                self._running.remove(phase)

    def _read(self) -> None:
        peak = self._gauge()
        if peak is not None:
            self._peaks |= {phase: peak.largest(self._peaks.get(phase, peak)) for phase in self._running}

    def take_metrics(self) -> dict[str, float]:
        """GiB by phase since the last call: allocated, reserved and planned."""
        peaks, self._peaks = self._peaks, {}
        metrics = {}
        for phase, peak in peaks.items():
            metrics[f"memory_gb/{phase}/allocated"] = peak.allocated / GIB
            metrics[f"memory_gb/{phase}/reserved"] = peak.reserved / GIB
            bytes_planned = self._planned.get(PLANNED_PHASE.get(phase, ""))
            if bytes_planned is not None:
                metrics[f"memory_gb/{phase}/planned"] = bytes_planned / GIB
        if peaks:
            metrics["actor/perf/max_memory_allocated_gb"] = max(peak.allocated for peak in peaks.values()) / GIB
            metrics["actor/perf/max_memory_reserved_gb"] = max(peak.reserved for peak in peaks.values()) / GIB
        return metrics


def pool_metrics(pools: Mapping[str, ResourcePool]) -> dict[str, float]:
    """Idle share and age of the heartbeats of each pool with processes of its own, since the last call."""
    used = {name: usage for name, pool in pools.items() if (usage := pool.take_usage()) is not None}
    metrics = {f"perf/idle_share/{name}": usage.idle_share for name, usage in used.items()}
    return metrics | {f"perf/heartbeat_age/{name}": usage.heartbeat_age_seconds for name, usage in used.items()}


VISIBLE_FRACTION = 1e-3
"of the time between two records that a span takes at least, to be kept"


def take_spans(timer: Timer, pools: Mapping[str, ResourcePool], *, step: int) -> list[Span]:
    """What ran since the last call: the phases, the calls on the pools, and those of reward functions (pool `host`)."""
    calls = [(name, rank, call) for name, pool in pools.items() for rank, call in pool.take_calls()]
    calls += [("host", 0, call) for call in take_host_calls()]
    spans = [replace(span, step=step if span.step is None else span.step) for span in timer.take_spans()]
    spans += [
        Span(
            name=call.name,
            start=call.start,
            end=call.end,
            step=step,
            pool=pool,
            rank=rank,
            rows=call.rows,
            version=call.version,
        )
        for pool, rank, call in calls
    ]
    since = min((span.start for span in spans), default=0.0)
    shortest = VISIBLE_FRACTION * (max((span.end for span in spans), default=0.0) - since)
    return [span for span in spans if span.seconds >= shortest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The reporter, timer and memory gauge of a run."""

    reporter: Reporter
    timer: Timer
    memory: PhaseMemory
    seed: int = 0
    "of the step"
    step: int | None = None
    "that the phases are part of; None is the one that is recorded next"

    @classmethod
    def of_setup(cls, setup: Setup, reporter: Reporter) -> Self:
        """The memory is that of the actor's pool."""
        planned = {budget.phase: budget.total_bytes for budget in setup.plan.pool_of("actor").budgets}
        memory = PhaseMemory(setup.pool_of("actor").take_peak, planned=planned)
        return cls(reporter=reporter, timer=Timer(reporter), memory=memory)

    @contextmanager
    def __call__(self, name: str, *, items: int = 0) -> Iterator[Callable[[int], None]]:
        """Measure the block as phase `name`; the block may report progress over `items`.

        A phase that waits for a call measures that call. Scoring starts in `reward` and is awaited in `reward` after
        the other models have run, so its seconds are those that the step spends on scoring alone.
        """
        with self.memory(name), self.timer(name, items=items, step=self.step) as on_progress:
            yield on_progress
