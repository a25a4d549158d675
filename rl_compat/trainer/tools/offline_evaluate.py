"""Loss, margins and accuracy of a model or checkpoint on held-out offline data, without training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from rl_compat.algorithms.table import is_offline
from rl_compat.config.types import RunConfig
from rl_compat.errors import ConfigError
from rl_compat.hardware.types import Hardware
from rl_compat.planning.types import PoolPlan
from rl_compat.planning.workload import evaluation_workload
from rl_compat.trainer.checkpoints import FoundCheckpoint
from rl_compat.trainer.offline.data import validation_items
from rl_compat.trainer.offline.held_out import HeldOut, HeldOutRows
from rl_compat.trainer.reporter import Reporter, Timer
from rl_compat.trainer.setup.offline import check_model, load_learner
from rl_compat.workers.learner import LearnerWorker
from rl_compat.workers.setup import prepare


def uses_offline_data(config: RunConfig) -> bool:
    """Whether the algorithm is evaluated on offline data instead of generated responses."""
    return is_offline(config.algorithm.name)


def evaluate_offline(
    config: RunConfig,
    hardware: Hardware,
    *,
    checkpoint: FoundCheckpoint | None,
    reporter: Reporter,
    around: Callable[[PoolPlan], AbstractContextManager[object]] = nullcontext,
) -> HeldOut:
    """Evaluate on the held-out rows of the settings. The reference is the initial model of the run.

    Raises ConfigError, DataError, ModelError, HardwareError or DoesNotFitError before weights are loaded.
    """
    setup = prepare(config, hardware, describe=evaluation_workload)
    check_model(setup)
    data = validation_items(setup)
    if not data.items:
        raise ConfigError("`data.val_files` is empty: there is nothing to evaluate on", hint="set `data.val_files`")
    for note in (*setup.notes, *data.notes, *setup.plan.notes):
        reporter.say(f"note: {note}")
    timer = Timer(reporter)
    with around(setup.plan.pool_of("actor")):
        reporter.phase("loading the model")
        learner = load_learner(setup, trains=False)
        rows = HeldOutRows(setup, data.items)
        with timer("ref", items=len(data.items)) as on_progress:
            rows.measure_reference(learner, on_progress=on_progress)
        if checkpoint is not None:
            assert checkpoint.path is not None
            learner.group.run(LearnerWorker.load_weights, folder=checkpoint.path / "actor").result()
        with timer("testing", items=len(data.items)) as on_progress:
            return rows.measure(learner, on_progress=on_progress)
