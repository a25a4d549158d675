"""A run from its settings to its outcome: the one path of `rlc train` and `rl_compat.train`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl_compat.config.types import RunConfig
from rl_compat.emulation.device import emulate
from rl_compat.hardware.types import Hardware
from rl_compat.trainer.callbacks import Callback
from rl_compat.trainer.reporter import Reporter
from rl_compat.trainer.run import Outcome, Run
from rl_compat.trainer.run_folder import RunFolder, choose_checkpoint
from rl_compat.trainer.setup.objects import PythonObjects
from rl_compat.trainer.setup.start import check_training


class Training:
    """A run whose settings, data, plan, rewards and disk are checked; no weights are loaded."""

    def __init__(self, config: RunConfig, hardware: Hardware, *, objects: PythonObjects = PythonObjects()) -> None:
        """Raises ConfigError, DataError, ModelError, HardwareError, DoesNotFitError or CheckpointError."""
        self.folder = RunFolder(Path(config.trainer.output_dir))
        self.resumed = choose_checkpoint(self.folder, config)
        self.recipe = check_training(config, hardware, objects)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the checks found, for the user."""
        return (*self.resumed.skipped, *self.recipe.prepared.notes)

    def run(self, reporter: Reporter, callbacks: Sequence[Callback] = ()) -> Outcome:
        """Train to the end, a signal or an error; the newest finished step is in a checkpoint afterwards."""
        with emulate(self.recipe.prepared.setup.plan.pool_of("actor")):
            return Run(self.recipe, resumed=self.resumed, reporter=reporter, callbacks=callbacks).run()

    def close(self) -> None:
        """Stop what the checks started."""
        self.recipe.close()
