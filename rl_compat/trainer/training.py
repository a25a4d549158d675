"""A run from its settings to its outcome: the one path of `rlc train` and `rl_compat.train`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_compat.algorithms.table import is_offline
from rl_compat.config.types import RunConfig
from rl_compat.hardware.types import Hardware
from rl_compat.trainer.callbacks import Callback
from rl_compat.trainer.offline.training import Offline
from rl_compat.trainer.online.reinforcement import Reinforcement
from rl_compat.trainer.recipe import Recipe
from rl_compat.trainer.reporter import Reporter
from rl_compat.trainer.run import Run, RunOutcome
from rl_compat.trainer.run_folder import RunFolder, choose_checkpoint
from rl_compat.trainer.setup.objects import PythonObjects
from rl_compat.trainer.setup.offline import check_offline
from rl_compat.trainer.setup.online import check_run
from rl_compat.workers.setup import applied


def check_training(config: RunConfig, hardware: Hardware, objects: PythonObjects = PythonObjects()) -> Recipe[Any, Any]:
    """The recipe of the settings, checked before a model is loaded.

    Raises ConfigError, DataError, ModelError, HardwareError or DoesNotFitError.
    """
    if is_offline(config.algorithm.name):
        return Offline(check_offline(config, hardware, objects))
    return Reinforcement(check_run(config, hardware, objects))


class Training:
    """A run with checked settings, data, plan, rewards and disk space; no weights are loaded."""

    def __init__(self, config: RunConfig, hardware: Hardware, *, objects: PythonObjects = PythonObjects()) -> None:
        """Raises ConfigError, DataError, ModelError, HardwareError, DoesNotFitError or CheckpointError."""
        self.folder = RunFolder(Path(config.trainer.output_dir))
        self.resumed = choose_checkpoint(self.folder, config)
        self.recipe = check_training(config, hardware, objects)
        self._run: Run | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the checks, for the user."""
        return (*self.resumed.skipped, *self.recipe.prepared.notes)

    @property
    def has_nothing_to_do(self) -> bool:
        """Whether the newest checkpoint has all steps of the run, and the record the validation after them."""
        step, total = self.resumed.step, self.recipe.prepared.total_steps
        trainer, data = self.recipe.prepared.setup.config.trainer, self.recipe.prepared.setup.config.data
        validates = trainer.validate_after and bool(data.val_files)
        return 0 < total <= step and (not validates or self.folder.has_validation(step))

    @property
    def saved_step(self) -> int:
        """The step of the newest checkpoint."""
        return self.resumed.step if self._run is None else self._run.saved_step

    def run(self, reporter: Reporter, callbacks: Sequence[Callback] = ()) -> RunOutcome:
        """Train until the end, a signal or an error. Afterwards the newest finished step is in a checkpoint."""
        setup = self.recipe.prepared.setup
        with applied(setup.plan, setup.pools):
            self._run = Run(self.recipe, resumed=self.resumed, reporter=reporter, callbacks=callbacks)
            return self._run.run()

    def close(self) -> None:
        """Stop processes and free models that the checks started."""
        self.recipe.close()
