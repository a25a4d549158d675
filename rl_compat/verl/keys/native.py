"""The keys of verl that set a native setting, found by running the rules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from rl_compat.config.types import RunConfig
from rl_compat.verl.keys.policy import ACTOR
from rl_compat.verl.keys.releases import releases
from rl_compat.verl.keys.rules import Given, Inert
from rl_compat.verl.keys.table import KEYS

SWITCHES: Mapping[str, Any] = {
    "algorithm.filter_groups.enable": True,
    "algorithm.rollout_correction.rollout_is": "token",
    "algorithm.rollout_correction.rollout_rs": "token_k1",
    "algorithm.rollout_correction.rollout_rs_threshold": "0.5_2.0",
    "algorithm.use_kl_in_reward": True,
    "reward_model.enable": True,
    "reward.reward_model.enable": True,
    "reward.reward_kwargs.overlong_buffer_cfg.enable": True,
    "reward_model.overlong_buffer.enable": True,
    f"{ACTOR}.use_dynamic_bsz": True,
    f"{ACTOR}.use_kl_loss": True,
}
"keys that enable others"
VALUES = (True, False, 2, 0.5, "0.5_2.0", "token", "token_k1", "file", "error", "fp32", "sdpa", "vllm", "gae", "gspo")
"values tried for each key in addition to verl's default"


@cache
def verl_keys() -> Mapping[str, tuple[str, ...]]:
    """Native key to the keys of verl that set it, the shortest first."""
    found: dict[str, set[str]] = {}
    for key in KEYS:
        if "*" in key or isinstance(KEYS[key], Inert):
            continue
        for value in (*VALUES, releases().newest_default(key) if releases().having(key) else None):
            for native in _native_keys(key, value):
                found.setdefault(native, set()).add(key)
    return {native: tuple(sorted(keys, key=lambda key: (len(key), key))) for native, keys in found.items()}


def _native_keys(key: str, value: Any) -> tuple[str, ...]:
    values = {**SWITCHES, key: value}
    given = Given(values=values, base=RunConfig(), texts={name: str(item) for name, item in values.items()})
    try:
        return tuple(KEYS[key](key, value, given).native)
    except (TypeError, ValueError, AttributeError, ArithmeticError):
        return ()
