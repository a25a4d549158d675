"""RL post-training for language models on the GPU you have."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_compat.api.session import Session
    from rl_compat.api.train import TrainedRun, train
    from rl_compat.batch import Batch, Sequences
    from rl_compat.config.types import AlgorithmConfig, OffPolicyConfig, ReplayConfig, SamplesConfig
    from rl_compat.distributed.pool import ResourcePool
    from rl_compat.objectives.experience import Experience, ExperienceSettings, make_experience
    from rl_compat.replay.buffer import DrawnGroups, ReplayBuffer
    from rl_compat.replay.levels import ReplayRule
    from rl_compat.rewards.types import Scores
    from rl_compat.rollout.types import SamplingParams
    from rl_compat.trainer.callbacks import Callback
    from rl_compat.trainer.flow import Buffer, DataFlow, Stage
    from rl_compat.trajectory import Prompt
    from rl_compat.workers.actor import ActorModel
    from rl_compat.workers.critic import CriticModel
    from rl_compat.workers.options import ActorOptions, CriticOptions, FunctionOptions, ReferenceOptions, RewardOptions
    from rl_compat.workers.reference import ReferenceModel
    from rl_compat.workers.reward import RewardModel

__version__ = "0.1.0"

__all__ = [
    "ActorModel",
    "ActorOptions",
    "AlgorithmConfig",
    "Batch",
    "Buffer",
    "Callback",
    "CriticModel",
    "CriticOptions",
    "DataFlow",
    "DrawnGroups",
    "Experience",
    "ExperienceSettings",
    "FunctionOptions",
    "OffPolicyConfig",
    "Prompt",
    "ReferenceModel",
    "ReferenceOptions",
    "ReplayBuffer",
    "ReplayConfig",
    "ReplayRule",
    "ResourcePool",
    "RewardModel",
    "RewardOptions",
    "SamplesConfig",
    "SamplingParams",
    "Scores",
    "Sequences",
    "Session",
    "Stage",
    "TrainedRun",
    "__version__",
    "make_experience",
    "train",
]

_HOMES = {
    "ActorModel": "rl_compat.workers.actor",
    "ActorOptions": "rl_compat.workers.options",
    "AlgorithmConfig": "rl_compat.config.types",
    "Batch": "rl_compat.batch",
    "Buffer": "rl_compat.trainer.flow",
    "Callback": "rl_compat.trainer.callbacks",
    "CriticModel": "rl_compat.workers.critic",
    "CriticOptions": "rl_compat.workers.options",
    "DataFlow": "rl_compat.trainer.flow",
    "DrawnGroups": "rl_compat.replay.buffer",
    "Experience": "rl_compat.objectives.experience",
    "ExperienceSettings": "rl_compat.objectives.experience",
    "FunctionOptions": "rl_compat.workers.options",
    "OffPolicyConfig": "rl_compat.config.types",
    "Prompt": "rl_compat.trajectory",
    "ReferenceModel": "rl_compat.workers.reference",
    "ReferenceOptions": "rl_compat.workers.options",
    "ReplayBuffer": "rl_compat.replay.buffer",
    "ReplayConfig": "rl_compat.config.types",
    "ReplayRule": "rl_compat.replay.levels",
    "ResourcePool": "rl_compat.distributed.pool",
    "RewardModel": "rl_compat.workers.reward",
    "RewardOptions": "rl_compat.workers.options",
    "SamplesConfig": "rl_compat.config.types",
    "SamplingParams": "rl_compat.rollout.types",
    "Scores": "rl_compat.rewards.types",
    "Sequences": "rl_compat.batch",
    "Session": "rl_compat.api.session",
    "Stage": "rl_compat.trainer.flow",
    "TrainedRun": "rl_compat.api.train",
    "make_experience": "rl_compat.objectives.experience",
    "train": "rl_compat.api.train",
}


def __getattr__(name: str) -> Any:
    """Import a public class on first use, so that `import rl_compat` does not import torch."""
    if name not in _HOMES:
        raise AttributeError(f"module `rl_compat` has no attribute `{name}`")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
