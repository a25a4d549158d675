"""The recipe of the settings, with everything checked that can be before a model is loaded."""

from __future__ import annotations

from typing import Any

from rl_compat.algorithms.table import is_offline
from rl_compat.config.types import RunConfig
from rl_compat.hardware.types import Hardware
from rl_compat.trainer.offline.training import Offline
from rl_compat.trainer.online.reinforcement import Reinforcement
from rl_compat.trainer.recipe import Recipe
from rl_compat.trainer.setup.objects import PythonObjects
from rl_compat.trainer.setup.offline import check_offline
from rl_compat.trainer.setup.online import check_run


def check_training(config: RunConfig, hardware: Hardware, objects: PythonObjects = PythonObjects()) -> Recipe[Any]:
    """Raises ConfigError, DataError, ModelError, HardwareError or DoesNotFitError."""
    if is_offline(config.algorithm.name):
        return Offline(check_offline(config, hardware, objects))
    return Reinforcement(check_run(config, hardware, objects))
