"""RL post-training for language models on the GPU you have."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_compat.api.train import TrainedRun, train
    from rl_compat.config.types import AlgorithmConfig, OffPolicyConfig
    from rl_compat.distributed.pool import ResourcePool
    from rl_compat.objectives.experience import ExperienceSettings, make_experience
    from rl_compat.workers.actor import ActorModel
    from rl_compat.workers.critic import CriticModel
    from rl_compat.workers.reference import ReferenceModel
    from rl_compat.workers.reward import RewardModel

__version__ = "0.1.0"

__all__ = [
    "ActorModel",
    "AlgorithmConfig",
    "CriticModel",
    "ExperienceSettings",
    "OffPolicyConfig",
    "ReferenceModel",
    "ResourcePool",
    "RewardModel",
    "TrainedRun",
    "__version__",
    "make_experience",
    "train",
]

_HOMES = {
    "ActorModel": "rl_compat.workers.actor",
    "AlgorithmConfig": "rl_compat.config.types",
    "CriticModel": "rl_compat.workers.critic",
    "ExperienceSettings": "rl_compat.objectives.experience",
    "OffPolicyConfig": "rl_compat.config.types",
    "ReferenceModel": "rl_compat.workers.reference",
    "ResourcePool": "rl_compat.distributed.pool",
    "RewardModel": "rl_compat.workers.reward",
    "TrainedRun": "rl_compat.api.train",
    "train": "rl_compat.api.train",
    "make_experience": "rl_compat.objectives.experience",
}


def __getattr__(name: str) -> Any:
    """Import a public class on first use, so that `import rl_compat` does not import torch."""
    if name not in _HOMES:
        raise AttributeError(f"module `rl_compat` has no attribute `{name}`")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
