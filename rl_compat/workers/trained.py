"""The base of workers that train a model: mini-batches, the schedule, and saved state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from rl_compat.batch import Batch
from rl_compat.distributed.dispatch import dispatch, distinct
from rl_compat.training.base import TrainEngine
from rl_compat.training.state import TrainingState
from rl_compat.workers.mini_batches import mini_batches

AnyBatch = TypeVar("AnyBatch", bound=Batch)

WORKER_FILE = "worker.json"


class TrainedWorker:
    """A worker that owns a training engine."""

    engine: TrainEngine
    version: int = 0
    "number of batches that the weights have learned from"
    _kept: tuple[int, TrainingState] | None = None

    def mini_batches(
        self, batch: AnyBatch, *, prompts_per_mini_batch: int, num_epochs: int, seed: int
    ) -> Iterator[AnyBatch]:
        """The mini-batches of one update; afterwards `version` increases.

        The learning-rate schedule follows the batches of the run: it advances by the same amount over each of them,
        however many mini-batches it has.
        """
        total = num_epochs * -(-len(batch.groups.unique()) // prompts_per_mini_batch)
        pieces = mini_batches(batch, prompts_per_mini_batch=prompts_per_mini_batch, num_epochs=num_epochs, seed=seed)
        step = self.engine.step
        assert step is not None, "a worker without an optimizer does not learn"
        for number, piece in enumerate(pieces):
            if step.settings.steps_per_batch is not None:
                step.num_updates = (self.version + number / total) * step.settings.steps_per_batch
            yield piece
        self.version += 1

    @dispatch()
    def save_state(self, *, folder: Path) -> None:
        """Write the state to a folder; all ranks hold the same, and rank 0 writes it."""
        self.engine.save_state(folder)
        if self.engine.ranks.rank == 0:
            (folder / WORKER_FILE).write_text(json.dumps({"version": self.version}))

    @dispatch()
    def load_state(self, *, folder: Path) -> None:
        """Continue from a saved state. Raises CheckpointError."""
        self.engine.load_state(folder)
        self._load_version(folder)

    @dispatch()
    def load_weights(self, *, folder: Path) -> None:
        """Load only the weights of a saved state, for a worker that does not train. Raises CheckpointError."""
        self.engine.load_weights(folder)
        self._load_version(folder)

    def _load_version(self, folder: Path) -> None:
        file = folder / WORKER_FILE
        self.version = json.loads(file.read_text())["version"] if file.exists() else 0

    @dispatch()
    def keep_state(self) -> None:
        """Copy what training changes to host memory."""
        self._kept = self.version, self.engine.copy_state(None if self._kept is None else self._kept[1])

    @dispatch()
    def put_back_state(self) -> None:
        """Return to the last `keep_state`."""
        assert self._kept is not None, "no state is kept"
        self.version, state = self._kept
        self.engine.put_back_state(state)
        self._kept = None

    @dispatch(merge=distinct)
    def take_notes(self) -> list[str]:
        """Notes for the user since the last call, such as smaller micro-batches after running out of memory."""
        return self.engine.take_notes()
