"""What a run asks of the kind of training that it runs: reinforcement learning, imitation, preferences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rl_compat.data.order.batches import Order
from rl_compat.trainer.memory import PhaseMemory
from rl_compat.trainer.reporter import Reporter, Timer
from rl_compat.workers.setup import Setup

Collected = TypeVar("Collected")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruments:
    """What a method reports and measures with."""

    reporter: Reporter
    timer: Timer
    memory: PhaseMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """The number of a step that is drawn at the end of a run."""

    metric: str
    title: str
    key: str
    "of the list of them in the outcome as JSON"


class Measured(Protocol):
    """What a validation found."""

    @property
    def headline(self) -> Sequence[object]:
        """What is said of it, each as a sentence by `str`."""
        ...

    def metrics(self) -> dict[str, float]: ...


class Recipe(Protocol, Generic[Collected]):
    """One kind of training, with its settings, data and plan checked; `load` brings the models."""

    @property
    def setup(self) -> Setup: ...

    @property
    def order(self) -> Order:
        """Of the rows that steps are made of."""
        ...

    @property
    def total_steps(self) -> int: ...

    @property
    def total_optimizer_steps(self) -> int: ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What checking found worth saying."""
        ...

    @property
    def measure(self) -> Measure: ...

    def summary(self) -> str:
        """The run in one line, before it starts."""
        ...

    def load(self, instruments: Instruments, *, step: int) -> None:
        """Load the models, as they are before the first step, for a run that stands at `step`."""
        ...

    def collect(self, rows: Sequence[int], *, step: int) -> Collected:
        """What a step on these rows needs before it changes weights."""
        ...

    def learn(self, collected: Collected, *, step: int) -> dict[str, float]:
        """Change the weights; the metrics of the update."""
        ...

    def describe(self, collected: Collected, seconds: Mapping[str, float]) -> dict[str, float]:
        """The metrics of a step beside those of its update."""
        ...

    def samples(self, collected: Collected, count: int) -> list[dict[str, Any]]:
        """The first `count` rows of a step in words."""
        ...

    def validate(self) -> Measured | None:
        """Measure on held-out data; None where there is none."""
        ...

    def savers(self) -> Mapping[str, Callable[[Path], None]]:
        """By the name of a model's folder in a checkpoint: what fills it."""
        ...

    def restore(self, checkpoint: Path, *, policy_version: int) -> None:
        """Bring the models to a checkpoint."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What the method carries from step to step besides models, as plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def take_notes(self) -> list[str]:
        """What is to be said since the last call."""
        ...

    def close(self) -> None:
        """End what checking has started."""
        ...
