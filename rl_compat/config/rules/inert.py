"""Settings that have no effect because of another setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from rl_compat.algorithms.table import ALGORITHMS, LOSS_READS, OFFLINE_ROWS, PolicyLossName, is_offline, policy_loss_of
from rl_compat.config.report import KeyVerdict
from rl_compat.config.settings import build, replace, settings, values_of
from rl_compat.config.types import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class InertSettings:
    """Keys that nothing reads while a condition holds."""

    keys: tuple[str, ...]
    while_: Callable[[RunConfig], bool]
    because: str
    "settings in braces are replaced by their values"


def _without_critic(config: RunConfig) -> bool:
    return not ALGORITHMS[config.algorithm.name].needs_critic


def _unread_by_estimator(setting: str) -> InertSettings:
    return InertSettings(
        keys=(f"algorithm.{setting}",) if f"algorithm.{setting}" in settings() else _group(f"algorithm.{setting}"),
        while_=lambda config: setting not in ALGORITHMS[config.algorithm.name].reads,
        because="`algorithm.name={algorithm.name}` does not use it",
    )


def _unread_by_loss(setting: str) -> InertSettings:
    readers = " and ".join(f"`{name}`" for name, read in LOSS_READS.items() if setting in read)
    return InertSettings(
        keys=(f"algorithm.{setting}",),
        while_=lambda config: setting not in LOSS_READS[_loss(config)],
        because=f"only the policy losses {readers} use it",
    )


def _loss(config: RunConfig) -> PolicyLossName:
    return policy_loss_of(config.algorithm.name, config.algorithm.policy_loss)


def _group(section: str) -> tuple[str, ...]:
    """The settings of a section or group, including those of its groups."""
    return tuple(key for key in settings() if key.startswith(f"{section}."))


def _own(name: str) -> InertSettings:
    """The settings of an algorithm that learns from offline data."""
    return InertSettings(
        keys=_group(f"algorithm.{name}"),
        while_=lambda config: config.algorithm.name != name,
        because=f"only `algorithm.name={name}` reads it",
    )


def _column(tasks: tuple[str, ...], *keys: str) -> InertSettings:
    """Settings of columns that only some forms of rows have."""
    return InertSettings(
        keys=tuple(f"data.{key}" for key in keys),
        while_=lambda config: ALGORITHMS[config.algorithm.name].learns_from not in tasks,
        because="the rows of `algorithm.name={algorithm.name}` do not have this column",
    )


SHARED: tuple[InertSettings, ...] = (
    _column(("prompts",), "answer_key"),
    _column(("supervised", "labelled"), "response_key"),
    _column(("preference", "labelled"), "chosen_key", "rejected_key"),
    _column(("labelled",), "label_key"),
    InertSettings(
        keys=("model.lora_alpha", "model.lora_dropout", "model.lora_targets"),
        while_=lambda config: config.model.lora_rank == 0,
        because="`model.lora_rank` is 0",
    ),
    InertSettings(
        keys=("optimizer.min_lr_fraction",),
        while_=lambda config: config.optimizer.schedule == "constant",
        because="`optimizer.schedule` is `constant`",
    ),
    InertSettings(
        keys=("trainer.num_epochs",),
        while_=lambda config: config.trainer.num_steps is not None,
        because="`trainer.num_steps` decides when to stop",
    ),
    InertSettings(
        keys=("trainer.validation_temperature", "trainer.validate_every", "data.max_val_samples"),
        while_=lambda config: not config.data.val_files,
        because="`data.val_files` is empty",
    ),
)
"for every algorithm"

OFFLINE: tuple[InertSettings, ...] = (
    InertSettings(
        keys=("data.streaming",),
        while_=lambda config: is_offline(config.algorithm.name),
        because="rows with responses are kept in memory",
    ),
    *(_own(row.name) for row in OFFLINE_ROWS),
    InertSettings(
        keys=("algorithm.dpo.label_smoothing",),
        while_=lambda config: config.algorithm.name == "dpo" and config.algorithm.dpo.loss != "sigmoid",
        because="only `algorithm.dpo.loss=sigmoid` reads it",
    ),
)
"settings of algorithms without generation"

REINFORCEMENT: tuple[InertSettings, ...] = (
    InertSettings(
        keys=("model.critic_path", "optimizer.critic_lr", "algorithm.clip_value", "algorithm.critic_warmup_steps"),
        while_=_without_critic,
        because="`algorithm.name={algorithm.name}` has no critic",
    ),
    *(_unread_by_estimator(name) for name in sorted({name for row in ALGORITHMS.values() for name in row.reads})),
    *(_unread_by_loss(name) for name in dict.fromkeys(name for read in LOSS_READS.values() for name in read)),
    InertSettings(
        keys=_group("cost"),
        while_=lambda config: not ALGORITHMS[config.algorithm.name].needs_cost,
        because="`algorithm.name={algorithm.name}` has no cost; `ppo_lagrangian` has one",
    ),
    InertSettings(
        keys=("algorithm.max_sampling_rounds",),
        while_=lambda config: not config.algorithm.dynamic_sampling,
        because="`algorithm.dynamic_sampling` is false",
    ),
    InertSettings(
        keys=("off_policy.truncate", "off_policy.band", "off_policy.normalize"),
        while_=lambda config: config.off_policy.importance == "none",
        because="`off_policy.importance` is `none`: no importance weights are computed",
    ),
    InertSettings(
        keys=("off_policy.vtrace.enabled",),
        while_=_without_critic,
        because="`algorithm.name={algorithm.name}` has no critic",
    ),
    InertSettings(
        keys=("off_policy.vtrace.rho", "off_policy.vtrace.c"),
        while_=lambda config: not config.off_policy.vtrace.enabled or _without_critic(config),
        because="only `off_policy.vtrace.enabled` with a critic reads it",
    ),
    InertSettings(
        keys=("algorithm.kl_coef", "algorithm.kl_controller.type"),
        while_=lambda config: config.algorithm.kl_in_reward == "none",
        because="`algorithm.kl_in_reward` is `none`; set it to `k1` for a KL penalty in the reward",
    ),
    InertSettings(
        keys=("algorithm.kl_controller.target", "algorithm.kl_controller.horizon"),
        while_=lambda config: config.algorithm.kl_controller.type == "fixed" or config.algorithm.kl_in_reward == "none",
        because="only `algorithm.kl_controller.type=adaptive` with `algorithm.kl_in_reward` reads it",
    ),
    InertSettings(
        keys=("algorithm.kl_loss_coef",),
        while_=lambda config: config.algorithm.kl_loss == "none",
        because="`algorithm.kl_loss` is `none`; set it to `k3` for a KL term in the loss",
    ),
)


@cache
def _generation() -> InertSettings:
    """Settings that only generation and rewards read."""
    sections = ("algorithm", "off_policy", "off_policy.vtrace", "reward", "cost", "rollout")
    others = ("optimizer.critic_lr", "model.critic_path", "trainer.validation_temperature")
    groups = {row.name for row in OFFLINE_ROWS}
    keys = (
        key
        for key, setting in settings().items()
        if setting.section in sections
        or (setting.section.startswith("algorithm.") and setting.section.removeprefix("algorithm.") not in groups)
    )
    return InertSettings(
        keys=(*(key for key in keys if key != "algorithm.name"), *others),
        while_=lambda config: True,
        because="`algorithm.name={algorithm.name}` learns from offline data and generates nothing",
    )


def _rules(name: str) -> tuple[InertSettings, ...]:
    own = (_generation(),) if is_offline(name) else REINFORCEMENT
    return (*own, *OFFLINE, *SHARED)


EVERYTHING_ON: Mapping[str, Any] = {
    "model.lora_rank": 8,
    "optimizer.schedule": "linear",
    "algorithm.dynamic_sampling": True,
    "algorithm.kl_in_reward": "k1",
    "algorithm.kl_controller.type": "adaptive",
    "algorithm.kl_loss": "k3",
    "off_policy.importance": "token",
    "off_policy.vtrace.enabled": True,
}
"settings with which every optional part of an algorithm is in use"


def readers(key: str) -> tuple[str, ...]:
    """The algorithms in which a setting can have an effect."""
    losses = losses_reading(key)
    on = build({**EVERYTHING_ON, "algorithm.policy_loss": losses[0] if losses else "auto"})
    configs = {name: replace(on, {"algorithm.name": name}) for name in ALGORITHMS}
    return tuple(
        name
        for name, config in configs.items()
        if not any(key in rule.keys and rule.while_(config) for rule in _rules(name))
    )


def losses_reading(key: str) -> tuple[PolicyLossName, ...]:
    """The policy losses that read a setting, if only some do."""
    return tuple(name for name, read in LOSS_READS.items() if key.removeprefix("algorithm.") in read)


def inert_settings(config: RunConfig, given: Iterable[str]) -> tuple[KeyVerdict, ...]:
    """A verdict for every given key that differs from its default and has no effect."""
    values, wanted = values_of(config), set(given)
    return tuple(
        _verdict(key, values[key], rule.because.format(algorithm=config.algorithm))
        for rule in _rules(config.algorithm.name)
        if rule.while_(config)
        for key in rule.keys
        if key in wanted and values[key] != settings()[key].default
    )


def _verdict(key: str, value: Any, because: str) -> KeyVerdict:
    text = ",".join(str(item) for item in value) if isinstance(value, tuple) else str(value)
    return KeyVerdict(key=key, value=text, verdict="without effect", native_key=key, reason=because, warn=True)
