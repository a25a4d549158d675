"""From a request to training on given responses that can start: all is checked first, then the model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.types import RunConfig
from rl_compat.data.order.batches import Order
from rl_compat.hardware.types import Hardware
from rl_compat.models.value_model import check_scoring_family
from rl_compat.planning.memory.budget import checkpoint_bytes
from rl_compat.trainer.checkpoints import check_disk
from rl_compat.trainer.offline.data import OfflineData, training_items, validation_items
from rl_compat.trainer.run_folder import RunFolder
from rl_compat.trainer.setup.build import set_num_threads
from rl_compat.workers.learner import LearnerModel
from rl_compat.workers.learner_setup import learner_settings
from rl_compat.workers.setup import Setup, optimizer_steps_per_batch, prepare


@dataclass(frozen=True, kw_only=True)
class OfflinePrepared:
    """A run whose settings, data, plan and disk were checked; no weights are loaded."""

    setup: Setup
    training: OfflineData
    held_out: OfflineData
    order: Order
    total_steps: int
    notes: tuple[str, ...]

    @property
    def total_optimizer_steps(self) -> int:
        return self.total_steps * optimizer_steps_per_batch(self.setup.config)


def check_offline(config: RunConfig, hardware: Hardware) -> OfflinePrepared:
    """Everything that can be wrong before weights are loaded.

    Raises ConfigError, DataError, ModelError, HardwareError or DoesNotFitError.
    """
    setup = prepare(config, hardware)
    plan, trainer = setup.plan, config.trainer
    check_model(setup)
    size = checkpoint_bytes(setup.workload, plan)
    check_disk(RunFolder(Path(trainer.output_dir)).checkpoints, size, trainer.keep_checkpoints)
    training, held_out = training_items(setup), validation_items(setup)
    order = training.order(config)
    return OfflinePrepared(
        setup=setup,
        training=training,
        held_out=held_out,
        order=order,
        total_steps=trainer.num_steps or trainer.num_epochs * order.steps_per_epoch,
        notes=(*setup.notes, *training.notes, *held_out.notes, *plan.notes),
    )


def check_model(setup: Setup) -> None:
    """Raise ModelError for a model that cannot become what the algorithm trains."""
    if ALGORITHMS[setup.config.algorithm.name].scores:
        check_scoring_family(setup.source.folder)


def weight_files(folder: Path) -> list[tuple[str, int]]:
    """Name and size of the files that hold a model's weights."""
    return [(file.name, file.stat().st_size) for file in sorted(folder.glob("*.safetensors"))]


def load_learner(setup: Setup, *, total_optimizer_steps: int | None = None, trains: bool = True) -> LearnerModel:
    """The model of the settings, with torch's threads as planned; without an optimizer when it is only measured."""
    set_num_threads(setup)
    settings = learner_settings(setup, total_optimizer_steps=total_optimizer_steps, trains=trains)
    return LearnerModel(settings, pool=setup.pool_of("actor"))
