"""The interface between a run and what it trains: reinforcement learning, SFT, preferences, a reward model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rl_compat.data.order.batches import Order
from rl_compat.distributed.group import WorkerGroup
from rl_compat.planning.types import PoolPlan
from rl_compat.trainer.phases import Phases
from rl_compat.training.state import CopyPlace
from rl_compat.workers.setup import Setup, optimizer_steps_per_batch
from rl_compat.workers.trained import TrainedWorker

Sampled = TypeVar("Sampled")
Collected = TypeVar("Collected")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """The metric whose curve is drawn at the end of a run."""

    metric: str
    title: str
    key: str
    "key of its values in the JSON outcome"


class Measured(Protocol):
    """The result of a validation."""

    @property
    def headline(self) -> Sequence[object]:
        """Its results, one printed line each."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Warnings for the user."""
        ...

    def metrics(self) -> dict[str, float]: ...


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run with checked settings, data, plan and disk space; no weights are loaded."""

    setup: Setup
    order: Order
    "order of the training rows"
    total_steps: int
    notes: tuple[str, ...]
    "notes of the checks, for the user"
    checkpoint_bytes: int
    "weights and optimizer states of all trained models: the size of a checkpoint"

    @property
    def total_optimizer_steps(self) -> int:
        return self.total_steps * self.optimizer_steps_per_step

    @property
    def optimizer_steps_per_step(self) -> int:
        return optimizer_steps_per_batch(self.setup.config)

    @property
    def place_of_copies(self) -> CopyPlace | None:
        """Where a copy of all trained state has room in addition to the plan; None if it has none."""
        host_bytes = self.setup.hardware.host.ram_available_bytes * self.setup.config.plan.memory_fraction
        return place_of_copies(self.setup.plan.pools.values(), size=self.checkpoint_bytes, host_bytes=host_bytes)


def place_of_copies(pools: Collection[PoolPlan], *, size: int, host_bytes: float) -> CopyPlace | None:
    """Where `size` bytes have room in addition to what the pools need. `host_bytes` is what the host may hold.

    A device takes them where they fill at most half of what its plan leaves free, since a plan is an estimate.
    """
    free = (0 if pool.device == "cpu" else pool.memory_available_bytes - pool.peak_bytes for pool in pools)
    if 2 * size <= min(free):
        return "device"
    return "host" if size <= host_bytes - sum(pool.host_bytes for pool in pools) else None


class Recipe(Protocol, Generic[Sampled, Collected]):
    """One kind of training, prepared; `load` loads the models."""

    @property
    def prepared(self) -> PreparedRun: ...

    @property
    def staleness(self) -> int:
        """The number of steps by which `sample` may run ahead of `learn`."""
        ...

    @property
    def calls(self) -> int:
        """The number of calls of `sample` that may run at the same time."""
        ...

    def learning(self) -> AbstractContextManager[None]:
        """Inside the context, the devices of the trained models are free for `collect` and `learn`."""
        ...

    @property
    def trained(self) -> Mapping[str, WorkerGroup[TrainedWorker]]:
        """The workers of each trained model, by the name of its folder in a checkpoint: `TrainedWorker`s."""
        ...

    @property
    def measure(self) -> Measure: ...

    def summary(self) -> str:
        """One line about the run, printed before it starts."""
        ...

    def load(self, phases: Phases, *, step: int) -> None:
        """Load the initial models, for a run that is at `step`."""
        ...

    def start_earlier(self, step: int) -> None:
        """Be ready for the steps after `step`, which is before that of `load`; no step has been taken since."""
        ...

    @property
    def draw_size(self) -> int:
        """The number of rows that the next call of `sample` gets."""
        ...

    def sample(self, rows: Sequence[int], *, draw: int, more: Callable[[int], Sequence[int]]) -> Sampled:
        """What a step on these rows needs of the weights that the rollout has. Runs in a thread of its own.

        `draw` is the number of the call in the run, and `more` returns further rows.
        """
        ...

    def divide(self, sampled: Sampled) -> Sequence[tuple[Sampled, float]]:
        """The parts that steps may take, and the share of a step that each fills: one, or one for each row."""
        ...

    def collect(self, parts: Sequence[Sampled], *, dropped: Sequence[Sampled], step: int) -> Collected:
        """The rest of what a step needs before it changes weights. `dropped` are parts that no step takes."""
        ...

    def learn(self, collected: Collected, *, step: int) -> dict[str, float]:
        """Change the weights; returns the metrics of the update."""
        ...

    def describe(self, collected: Collected, seconds: Mapping[str, float]) -> dict[str, float]:
        """The metrics of a step except those of its update. `seconds` are its times by phase."""
        ...

    def samples(self, collected: Collected, count: int) -> list[dict[str, Any]]:
        """The first `count` rows of a step as text."""
        ...

    def validate(self) -> Measured | None:
        """Evaluate on held-out data; None without such data."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """State between steps apart from the models and the position in the data, as plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        ...

    def save_files(self, folder: Path) -> None:
        """Write what `state_dict` cannot hold into a checkpoint."""
        ...

    def load_files(self, folder: Path) -> None:
        """Continue from `save_files`. Raises DamagedCheckpointError."""
        ...

    def take_notes(self) -> list[str]:
        """Notes for the user since the last call."""
        ...

    def close(self) -> None:
        """Stop processes and free models that the checks started."""
        ...
