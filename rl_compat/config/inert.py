"""Settings that change nothing because of another setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rl_compat.config.report import KeyVerdict
from rl_compat.config.settings import settings, values_of
from rl_compat.config.types import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Inert:
    """Keys that nothing reads while a condition holds."""

    keys: tuple[str, ...]
    while_: Callable[[RunConfig], bool]
    because: str


RULES: tuple[Inert, ...] = (
    Inert(
        keys=(
            "model.critic_path",
            "optimizer.critic_lr",
            "algorithm.gae_lambda",
            "algorithm.gamma",
            "algorithm.whiten_advantages",
            "algorithm.clip_value",
            "algorithm.critic_warmup_steps",
        ),
        while_=lambda config: config.algorithm.name == "grpo",
        because="`algorithm.name=grpo` has no critic",
    ),
    Inert(
        keys=("algorithm.normalize_by_std",),
        while_=lambda config: config.algorithm.name == "ppo",
        because="`algorithm.name=ppo` has no groups",
    ),
    Inert(
        keys=("algorithm.kl_coef", "algorithm.kl_controller"),
        while_=lambda config: config.algorithm.kl_in_reward == "none",
        because="`algorithm.kl_in_reward` is `none`; set it to `k1` for a KL penalty in the reward",
    ),
    Inert(
        keys=("algorithm.kl_target", "algorithm.kl_horizon"),
        while_=lambda config: config.algorithm.kl_controller == "fixed" or config.algorithm.kl_in_reward == "none",
        because="only `algorithm.kl_controller=adaptive` with `algorithm.kl_in_reward` reads it",
    ),
    Inert(
        keys=("algorithm.kl_loss_coef",),
        while_=lambda config: config.algorithm.kl_loss == "none",
        because="`algorithm.kl_loss` is `none`; set it to `k3` for a KL term in the loss",
    ),
    Inert(
        keys=("model.lora_alpha", "model.lora_dropout", "model.lora_targets"),
        while_=lambda config: config.model.lora_rank == 0,
        because="`model.lora_rank` is 0",
    ),
    Inert(
        keys=("optimizer.min_lr_fraction",),
        while_=lambda config: config.optimizer.schedule == "constant",
        because="`optimizer.schedule` is `constant`",
    ),
    Inert(
        keys=("trainer.num_epochs",),
        while_=lambda config: config.trainer.num_steps is not None,
        because="`trainer.num_steps` decides when to stop",
    ),
    Inert(
        keys=("trainer.validation_temperature", "trainer.validate_every", "data.max_val_samples"),
        while_=lambda config: not config.data.val_files,
        because="`data.val_files` is empty",
    ),
)


def inert_settings(config: RunConfig, given: Iterable[str]) -> tuple[KeyVerdict, ...]:
    """A verdict for every given key that differs from its default and changes nothing."""
    values, wanted = values_of(config), set(given)
    return tuple(
        _verdict(key, values[key], rule.because)
        for rule in RULES
        if rule.while_(config)
        for key in rule.keys
        if key in wanted and values[key] != settings()[key].default
    )


def _verdict(key: str, value: Any, because: str) -> KeyVerdict:
    text = ",".join(str(item) for item in value) if isinstance(value, tuple) else str(value)
    return KeyVerdict(key=key, value=text, verdict="without effect", native_key=key, reason=because, warn=True)
