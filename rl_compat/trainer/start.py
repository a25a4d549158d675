"""The method of training that settings ask for, with everything checked that can be before a model is loaded."""

from __future__ import annotations

from typing import Any

from rl_compat.algorithms.table import is_offline
from rl_compat.config.types import RunConfig
from rl_compat.hardware.types import Hardware
from rl_compat.trainer.build import check_run
from rl_compat.trainer.method import Method
from rl_compat.trainer.offline import Offline
from rl_compat.trainer.offline_build import check_offline
from rl_compat.trainer.reinforcement import Reinforcement


def check_training(config: RunConfig, hardware: Hardware) -> Method[Any]:
    """Raises ConfigError, DataError, ModelError, HardwareError or DoesNotFitError."""
    if is_offline(config.algorithm.name):
        return Offline(check_offline(config, hardware))
    return Reinforcement(check_run(config, hardware))
