"""Settings of losses and experience with a few values changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rl_compat.algorithms.losses.types import PolicyLossNumbers
from rl_compat.config.settings import replace as replace_settings
from rl_compat.config.types import AlgorithmConfig, ModelConfig, OffPolicyConfig
from rl_compat.models.lora import LoraSettings
from rl_compat.objectives.actor_critic import LossSettings
from rl_compat.objectives.experience import ExperienceSettings
from rl_compat.workers.setup import lora_settings


def loss_numbers(**changes: float | None) -> PolicyLossNumbers:
    """The numbers of the default settings with some changed."""
    return replace(LossSettings().numbers, **changes)


def loss_settings(*, width: int | None = None, **changes: Any) -> LossSettings:
    """Loss settings with some of `algorithm` changed; a group's setting as `clip_cov__low`."""
    values = {key.replace("__", "."): value for key, value in changes.items()}
    return LossSettings(algorithm=replace_settings(AlgorithmConfig(), values), width=width)


def experience_settings(name: str, *, off_policy: OffPolicyConfig | None = None, **changes: Any) -> ExperienceSettings:
    """Experience settings of an algorithm with some of `algorithm` changed."""
    return ExperienceSettings(
        algorithm=AlgorithmConfig(name=name, **changes),  # type: ignore[arg-type]
        off_policy=off_policy or OffPolicyConfig(),
    )


def estimator_settings(**changes: Any) -> dict[str, Any]:
    """What `AdvantageInputs` takes of the settings, with some changed."""
    default = AlgorithmConfig()
    return {
        "gamma": default.gamma,
        "gae_lambda": default.gae_lambda,
        "whiten": default.whiten_advantages,
        "normalize_by_std": default.normalize_by_std,
    } | changes


def lora_of(rank: int, **changes: Any) -> LoraSettings:
    """Adapters of this rank; `alpha`, `dropout` and `targets` as in the settings when not given."""
    config = ModelConfig(lora_rank=rank, **{f"lora_{name}": value for name, value in changes.items()})
    settings = lora_settings(config)
    assert settings is not None
    return settings
