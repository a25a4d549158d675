"""The measuring of one step: seconds and peak memory by phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rl_compat.trainer.memory import PhaseMemory
from rl_compat.trainer.reporter import Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """What the phases of a step are measured with, and the seed of the step."""

    seed: int
    timer: Timer
    memory: PhaseMemory

    @contextmanager
    def __call__(self, name: str, *, items: int = 0) -> Iterator[Callable[[int], None]]:
        """Measure the block as phase `name`; the block may report how many of its `items` are done.

        Phases that wait for a call measure that call. Scoring is started in `reward` and awaited in `reward` after the
        other models have run: its seconds are those that the step spends on scoring alone, not those that scoring
        takes while other phases run.
        """
        with self.memory(name), self.timer(name, items=items) as on_progress:
            yield on_progress
