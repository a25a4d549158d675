"""Seconds and peak memory by phase of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rl_compat.trainer.memory import PhaseMemory
from rl_compat.trainer.reporter import Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The timer and memory gauge of a step's phases, and the seed of the step."""

    seed: int
    timer: Timer
    memory: PhaseMemory

    @contextmanager
    def __call__(self, name: str, *, items: int = 0) -> Iterator[Callable[[int], None]]:
        """Measure the block as phase `name`; the block may report progress over `items`.

        A phase that waits for a call measures that call. Scoring starts in `reward` and is awaited in `reward` after
        the other models have run, so its seconds are those that the step spends on scoring alone.
        """
        with self.memory(name), self.timer(name, items=items) as on_progress:
            yield on_progress
