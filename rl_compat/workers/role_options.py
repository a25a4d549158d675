"""Options of `from_pretrained` as settings, checked and planned for one pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.settings import settings_by_algorithm
from rl_compat.config.types import (
    AlgorithmConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    PlanConfig,
    RolloutConfig,
    RunConfig,
    TrainerConfig,
)
from rl_compat.distributed.pool import ResourcePool
from rl_compat.errors import ConfigError, did_you_mean
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.types import CRITIC_ROLES, RoleName
from rl_compat.planning.workload import Workload, shared_workload
from rl_compat.workers.setup import Setup, prepare

_OPTIONS: dict[str, tuple[str, str]] = {
    "algorithm": ("algorithm", "name"),
    "lr": ("optimizer", ""),
    "weight_decay": ("optimizer", "weight_decay"),
    "optimizer": ("optimizer", "name"),
    "lora_rank": ("model", "lora_rank"),
    "lora_alpha": ("model", "lora_alpha"),
    "chat_template": ("model", "chat_template"),
    "max_prompt_length": ("data", "max_prompt_length"),
    "max_new_tokens": ("data", "max_response_length"),
    "temperature": ("rollout", "temperature"),
    "stop_strings": ("rollout", "stop_strings"),
    "rollout": ("rollout", "engine"),
    "max_num_seqs": ("rollout", "max_num_seqs"),
    "num_epochs": ("algorithm", "num_epochs"),
    "policy_loss": ("algorithm", "policy_loss"),
    "clip_low": ("algorithm", "clip_low"),
    "clip_high": ("algorithm", "clip_high"),
    "clip_value": ("algorithm", "clip_value"),
    "entropy_coef": ("algorithm", "entropy_coef"),
    "kl_loss": ("algorithm", "kl_loss"),
    "kl_loss_coef": ("algorithm", "kl_loss_coef"),
    "batch_size": ("trainer", "batch_size"),
    "mini_batch_size": ("trainer", "mini_batch_size"),
}
"option of `from_pretrained` to section and field of the settings"


class RoleOptions:
    """The options of `from_pretrained`."""

    def __init__(self, *, path: str, **options: Any) -> None:
        for name in options:
            if name not in _OPTIONS:
                hint = did_you_mean(name, _OPTIONS, f"options: {', '.join(_OPTIONS)}")
                raise ConfigError(f"`{name}` is not an option of `from_pretrained`", hint=hint)
        self._path = path
        self._options = options

    def on(self, pool: ResourcePool) -> Setup:
        """Check the options and plan them for the pool's device, with room for the other roles of PPO."""
        sections: dict[str, dict[str, Any]] = {"model": {"path": self._path}}
        for name, value in self._options.items():
            section, key = _OPTIONS[name]
            for field in [key] if key else ["actor_lr", "critic_lr"]:
                sections.setdefault(section, {})[field] = value
        given = {f"{section}.{key}": value for section, part in sections.items() for key, value in part.items()}
        for dotted, value in settings_by_algorithm(given).items():
            section, _, key = dotted.partition(".")
            sections.setdefault(section, {})[key] = value
        batch_size = sections.get("trainer", {}).get("batch_size", TrainerConfig().batch_size)
        sections.setdefault("trainer", {}).setdefault("mini_batch_size", batch_size)
        return prepare(_run_config(sections), pool.hardware, describe=_with_room_for_others)


def _with_room_for_others(config: RunConfig, shapes: Mapping[RoleName, ModelShape]) -> Workload:
    row = ALGORITHMS[config.algorithm.name]
    critics: tuple[RoleName, ...] = CRITIC_ROLES if row.needs_cost else ("critic",) if row.needs_critic else ()
    return shared_workload(
        shapes["actor"],
        ("actor", *critics, "reference"),
        data=config.data,
        algorithm=config.algorithm,
        model=config.model,
        trainer=config.trainer,
    )


def _run_config(sections: dict[str, dict[str, Any]]) -> RunConfig:
    classes = {
        "model": ModelConfig,
        "data": DataConfig,
        "algorithm": AlgorithmConfig,
        "rollout": RolloutConfig,
        "optimizer": OptimizerConfig,
        "trainer": TrainerConfig,
        "plan": PlanConfig,
    }
    return replace(RunConfig(), **{name: classes[name](**fields) for name, fields in sections.items()})
