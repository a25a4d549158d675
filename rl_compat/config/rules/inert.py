"""Settings that have no effect because of another setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from rl_compat.algorithms.table import ALGORITHMS, LOSS_READS, OFFLINE_ROWS, PolicyLossName, is_offline, policy_loss_of
from rl_compat.config.report import KeyVerdict
from rl_compat.config.settings import build, replace, settings, values_of
from rl_compat.config.types import RunConfig

SWITCHES: tuple[tuple[str, Any, Any, tuple[str, ...]], ...] = (
    ("model.lora_rank", 0, 8, ("model.lora_alpha", "model.lora_dropout", "model.lora_targets")),
    ("optimizer.schedule", "constant", "linear", ("optimizer.min_lr_fraction",)),
    (
        "data.val_files",
        (),
        ("gsm8k",),
        ("trainer.validation_temperature", "trainer.validate_every", "data.max_val_samples"),
    ),
    ("algorithm.dynamic_sampling", False, True, ("algorithm.max_sampling_rounds",)),
    ("off_policy.importance", "none", "token", ("off_policy.truncate", "off_policy.band", "off_policy.normalize")),
    ("off_policy.vtrace.enabled", False, True, ("off_policy.vtrace.rho", "off_policy.vtrace.c")),
    (
        "algorithm.kl_in_reward",
        "none",
        "k1",
        (
            "algorithm.kl_coef",
            "algorithm.kl_controller.type",
            "algorithm.kl_controller.target",
            "algorithm.kl_controller.horizon",
        ),
    ),
    (
        "algorithm.kl_controller.type",
        "fixed",
        "adaptive",
        ("algorithm.kl_controller.target", "algorithm.kl_controller.horizon"),
    ),
    ("algorithm.kl_loss", "none", "k3", ("algorithm.kl_loss_coef",)),
    (
        "trainer.flow",
        "sync",
        "async",
        ("trainer.max_staleness", "trainer.on_stale", "trainer.batch_tokens", "rollout.on_update"),
    ),
    ("samples.replay.priority", "uniform", "advantage", ("samples.replay.alpha", "samples.replay.beta")),
    ("samples.keep", True, False, ("trainer.num_sample_generations",)),
)
"a setting, its value that switches something off, one that switches it on, and the settings that only this reads"

EVERYTHING_ON = {"samples.reuse": 2} | {key: on for key, _, on, _ in SWITCHES}
"settings with which every optional part of an algorithm is in use"


@dataclass(frozen=True, slots=True)
class InertSettings:
    """Keys that nothing reads while a condition holds."""

    keys: tuple[str, ...]
    while_: Callable[[RunConfig], bool]
    because: str
    "settings in braces are replaced by their values"


@cache
def _rules() -> tuple[InertSettings, ...]:
    """All rules; where several apply to a key, the first one gives the reason."""
    name = "`algorithm.name={algorithm.name}`"
    only_ppo = ("model.critic_path", "optimizer.critic_lr", "algorithm.clip_value", "algorithm.critic_warmup_steps")
    return (
        InertSettings(
            _generation(),
            lambda config: is_offline(config.algorithm.name),
            f"{name} learns from offline data and generates nothing",
        ),
        InertSettings(
            (*only_ppo, *_group("off_policy.vtrace")),
            lambda config: not ALGORITHMS[config.algorithm.name].needs_critic,
            f"{name} has no critic",
        ),
        InertSettings(
            _group("cost"),
            lambda config: not ALGORITHMS[config.algorithm.name].needs_cost,
            f"{name} has no cost; `ppo_lagrangian` has one",
        ),
        *(_unread_by_estimator(name) for name in sorted({name for row in ALGORITHMS.values() for name in row.reads})),
        *(_unread_by_loss(name) for name in dict.fromkeys(name for read in LOSS_READS.values() for name in read)),
        InertSettings(
            ("data.streaming",),
            lambda config: is_offline(config.algorithm.name),
            "rows with responses are kept in memory",
        ),
        *(_own(row.name) for row in OFFLINE_ROWS),
        InertSettings(
            ("samples.keep_gib",),
            lambda config: not config.samples.keep,
            "`samples.keep` is false",
        ),
        InertSettings(
            _group("samples.replay"),
            lambda config: config.samples.reuse == 1,
            "`samples.reuse` is 1",
        ),
        InertSettings(
            ("algorithm.dpo.label_smoothing",),
            lambda config: config.algorithm.dpo.loss != "sigmoid",
            "only `algorithm.dpo.loss=sigmoid` reads it",
        ),
        _column(("prompts",), "answer_key"),
        _column(("supervised", "labelled"), "response_key"),
        _column(("preference", "labelled"), "chosen_key", "rejected_key"),
        _column(("labelled",), "label_key"),
        InertSettings(
            ("trainer.num_epochs",),
            lambda config: config.trainer.num_steps is not None,
            "`trainer.num_steps` decides when to stop",
        ),
        *(_switched_off(*switch) for switch in SWITCHES),
    )


def _switched_off(switch: str, off: Any, on: Any, keys: tuple[str, ...]) -> InertSettings:
    words = "is empty" if off == () else f"is {off}" if isinstance(off, int) else f"is `{off}`"
    return InertSettings(keys, lambda config: bool(attrgetter(switch)(config) == off), f"`{switch}` {words.lower()}")


def _unread_by_estimator(setting: str) -> InertSettings:
    return InertSettings(
        (f"algorithm.{setting}",) if f"algorithm.{setting}" in settings() else _group(f"algorithm.{setting}"),
        lambda config: setting not in ALGORITHMS[config.algorithm.name].reads,
        "`algorithm.name={algorithm.name}` does not use it",
    )


def _unread_by_loss(setting: str) -> InertSettings:
    readers = " and ".join(f"`{name}`" for name, read in LOSS_READS.items() if setting in read)
    return InertSettings(
        (f"algorithm.{setting}",),
        lambda config: setting not in LOSS_READS[policy_loss_of(config.algorithm.name, config.algorithm.policy_loss)],
        f"only the policy losses {readers} use it",
    )


def _group(section: str) -> tuple[str, ...]:
    """The settings of a section or group, including those of its groups."""
    return tuple(key for key in settings() if key.startswith(f"{section}."))


def _own(name: str) -> InertSettings:
    """The settings of an algorithm that learns from offline data."""
    return InertSettings(
        _group(f"algorithm.{name}"),
        lambda config: config.algorithm.name != name,
        f"only `algorithm.name={name}` reads it",
    )


def _column(tasks: tuple[str, ...], *keys: str) -> InertSettings:
    """Settings of columns that only some forms of rows have."""
    return InertSettings(
        tuple(f"data.{key}" for key in keys),
        lambda config: ALGORITHMS[config.algorithm.name].learns_from not in tasks,
        "the rows of `algorithm.name={algorithm.name}` do not have this column",
    )


def _generation() -> tuple[str, ...]:
    """Settings that only generation and rewards read."""
    sections = ("algorithm", "off_policy", "samples", "reward", "cost", "rollout")
    offline = tuple(f"algorithm.{row.name}." for row in OFFLINE_ROWS)
    keys = [key for key in settings() if key.partition(".")[0] in sections and not key.startswith(offline)]
    keys.remove("algorithm.name")
    return (*keys, "optimizer.critic_lr", "model.critic_path", "trainer.validation_temperature")


def readers(key: str) -> tuple[str, ...]:
    """The algorithms in which a setting can have an effect."""
    losses = losses_reading(key)
    on = build({**EVERYTHING_ON, "algorithm.policy_loss": losses[0] if losses else "auto"})
    return tuple(
        name
        for name in ALGORITHMS
        if any(
            key not in inert_reasons(replace(on, {"algorithm.name": name, "samples.keep": keeps}))
            for keeps in (True, False)  # each value switches another setting off
        )
    )


def losses_reading(key: str) -> tuple[PolicyLossName, ...]:
    """The policy losses that read a setting, if only some do."""
    return tuple(name for name, read in LOSS_READS.items() if key.removeprefix("algorithm.") in read)


def inert_settings(config: RunConfig, given: Iterable[str]) -> tuple[KeyVerdict, ...]:
    """A verdict for every given key that differs from its default and has no effect."""
    values, reasons = values_of(config), inert_reasons(config)
    found = []
    for key in dict.fromkeys(given):
        if key in reasons and values[key] != settings()[key].default:
            value = values[key]
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            verdict = KeyVerdict(
                key=key, value=text, verdict="without effect", native_key=key, reason=reasons[key], warn=True
            )
            found.append(verdict)
    return tuple(found)


def inert_reasons(config: RunConfig) -> dict[str, str]:
    """The keys that have no effect, with the reason."""
    reasons: dict[str, str] = {}
    for rule in _applying(config):
        for key in rule.keys:
            reasons.setdefault(key, rule.because.format(algorithm=config.algorithm))
    return reasons


def _applying(config: RunConfig) -> Iterator[InertSettings]:
    return (rule for rule in _rules() if rule.while_(config))
