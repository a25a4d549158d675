"""Checks of training on offline data before weights are loaded, and its model."""

from __future__ import annotations

from dataclasses import dataclass

from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.types import RunConfig
from rl_compat.hardware.types import Hardware
from rl_compat.models.scalar import check_scoring_family
from rl_compat.planning.memory.budget import checkpoint_bytes
from rl_compat.trainer.checkpoints import check_disk
from rl_compat.trainer.offline.data import OfflineData, training_items, validation_items
from rl_compat.trainer.recipe import PreparedRun
from rl_compat.trainer.setup.objects import PythonObjects
from rl_compat.workers.learner import LearnerModel, learner_settings
from rl_compat.workers.setup import Setup, prepare


@dataclass(frozen=True, kw_only=True)
class OfflinePrepared(PreparedRun):
    """Prepared training on offline data."""

    training: OfflineData
    held_out: OfflineData


def check_offline(config: RunConfig, hardware: Hardware, objects: PythonObjects = PythonObjects()) -> OfflinePrepared:
    """Check everything that can be checked before weights are loaded.

    Raises ConfigError, DataError, ModelError, HardwareError or DoesNotFitError.
    """
    setup = prepare(config, hardware)
    plan, trainer = setup.plan, config.trainer
    check_model(setup)
    size = checkpoint_bytes(setup.workload, plan)
    training, held_out = training_items(setup, objects), validation_items(setup, objects)
    order = training.order(config)
    total_steps = trainer.num_steps or trainer.num_epochs * order.steps_per_epoch
    check_disk(trainer, size, total_steps=total_steps)
    return OfflinePrepared(
        setup=setup,
        training=training,
        held_out=held_out,
        order=order,
        total_steps=total_steps,
        checkpoint_bytes=size,
        notes=(*setup.notes, *training.notes, *held_out.notes, *plan.notes),
    )


def check_model(setup: Setup) -> None:
    """Raise ModelError for a model that the algorithm cannot train."""
    if ALGORITHMS[setup.config.algorithm.name].scores:
        check_scoring_family(setup.source.folder)


def load_learner(setup: Setup, *, num_batches: int | None = None, trains: bool = True) -> LearnerModel:
    """The model of the settings; without an optimizer for evaluation."""
    settings = learner_settings(setup, num_batches=num_batches, trains=trains)
    return LearnerModel(settings, pool=setup.pool_of("actor"))
