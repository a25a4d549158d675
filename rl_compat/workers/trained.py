"""The base of workers that train a model: mini-batches, the schedule, and saved state."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

from rl_compat import seeds
from rl_compat.batch import Batch
from rl_compat.distributed.group import WorkerGroup, dispatch, distinct
from rl_compat.errors import WorkerError
from rl_compat.models.files.export import check_output
from rl_compat.models.parts import local
from rl_compat.training.base import TrainEngine
from rl_compat.training.state import CopyPlace
from rl_compat.workers.mini_batches import mini_batches

AnyBatch = TypeVar("AnyBatch", bound=Batch)

WORKER_FILE = "worker.json"


class TrainedWorker:
    """A worker that owns a training engine."""

    engine: TrainEngine
    version: int = 0
    "number of batches that the weights have learned from"
    _marked_version: int = 0

    def mini_batches(
        self, batch: AnyBatch, *, prompts_per_mini_batch: int, num_epochs: int, seed: int
    ) -> Iterator[AnyBatch]:
        """The mini-batches of one update; afterwards `version` increases.

        The learning-rate schedule follows the batches of the run: it advances by the same amount over each of them,
        however many mini-batches it has.
        """
        total = num_epochs * -(-len(batch.groups.unique()) // prompts_per_mini_batch)
        batches = mini_batches(batch, prompts_per_mini_batch=prompts_per_mini_batch, num_epochs=num_epochs, seed=seed)
        step = self.engine.step
        assert step is not None, "a worker without an optimizer does not learn"
        for number, mini_batch in enumerate(batches):
            if step.settings.steps_per_batch is not None:
                step.num_updates = (self.version + number / total) * step.settings.steps_per_batch
            yield mini_batch
        self.version += 1

    @contextmanager
    def learning(self, *, seed: int) -> Iterator[None]:
        """The model on its device, for an update whose dropout depends on the seed and the rank alone."""
        device, ranks = torch.device(self.engine.role.device), self.engine.ranks
        with self.engine.onloaded(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seeds.derive(seed, "rank", ranks.rank))
            yield

    @dispatch(merge=lambda results, shares: all(results))
    def is_finite(self) -> bool:
        """Whether no trained weight is NaN or infinite."""
        return all(bool(local(weight).isfinite().all()) for weight in self.engine.parameters.values())

    @contextmanager
    def writing(self, output: Path) -> Iterator[bool]:
        """Whether this rank is the one that writes an output, which is there for all ranks after the context.

        Raises ModelError on all ranks if the output exists and is not empty.
        """
        ranks = self.engine.ranks
        check_output(output)
        ranks.barrier()
        try:
            yield ranks.process == 0
        finally:
            ranks.barrier()

    @dispatch()
    def save_state(self, *, folder: Path) -> None:
        """Write the state to a folder; all ranks hold the same, and rank 0 writes it."""
        self._check_shards()
        self.engine.save_state(folder)
        if self.engine.ranks.process == 0:
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
    def mark_state(self) -> None:
        """Record the current state without a copy: `put_back_state` restores it as long as no weight has changed."""
        self._marked_version = self.version
        self.engine.mark_state()

    @dispatch()
    def keep_state(self, *, place: CopyPlace) -> None:
        """Copy the current state to the device or the host, for `put_back_state`."""
        self._marked_version = self.version
        self.engine.keep_state(place)

    @dispatch()
    def put_back_state(self) -> None:
        """Restore the state of the last `mark_state` or `keep_state`. Raises RLCompatError if that is impossible."""
        self._check_shards()
        self.engine.put_back_state()
        self.version = self._marked_version

    def _check_shards(self) -> None:
        """Raise WorkerError if a process that held a part of the weights has ended."""
        role, left = self.engine.role, self.engine.ranks.num_processes
        if role.num_shards > left:
            raise WorkerError(f"`{role.role}` is shared by {role.num_shards} processes, of which {left} is left")

    @dispatch(merge=distinct, urgent=True)
    def take_notes(self) -> list[str]:
        """Notes for the user since the last call, such as smaller micro-batches after running out of memory."""
        return self.engine.take_notes()


def copy_state(old: WorkerGroup[TrainedWorker], new: WorkerGroup[TrainedWorker]) -> None:
    """Give new workers the state of old ones. Raises CheckpointError if it cannot be written."""
    with tempfile.TemporaryDirectory() as folder:
        old.run(TrainedWorker.save_state, folder=Path(folder)).result()
        new.run(TrainedWorker.load_state, folder=Path(folder)).result()
