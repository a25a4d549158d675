"""All known keys of verl with their rules, the native settings that these set, and the defaults of nine releases."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from rl_compat.config.types import RunConfig
from rl_compat.errors import quoted
from rl_compat.verl.keys import asynchronous, correction, meanings, policy, reward
from rl_compat.verl.keys.role_keys import ROLES, ROLLOUT
from rl_compat.verl.keys.rules import (
    Given,
    Inert,
    Rule,
    inert,
    off,
    only,
    other_than,
    renamed,
    same,
    same_names,
    under,
    unless_negative,
    where,
)

OWN_REWARD = "use `reward.functions=file.py:function`"
TEMPLATE = "put the template in a file and set `model.chat_template=FILE`"
NO_KL_IN_REWARD = "as in verl, only a KL in the reward reads it; add `algorithm.use_kl_in_reward=true` for one"
KL_IN_REWARD = "algorithm.use_kl_in_reward"
FILTER = "algorithm.filter_groups.enable"
NO_FILTER = "`filter_groups.enable` is not true"

DATA: Mapping[str, Rule] = {
    **same_names("data", "train_files", "val_files", "prompt_key", "max_prompt_length", "max_response_length"),
    **same_names("data", "shuffle", "seed"),
    "tokenizer": same("model.tokenizer"),
    "trust_remote_code": same("model.trust_remote_code"),
    "train_batch_size": same("trainer.batch_size", reason="prompts"),
    "train_max_samples": unless_negative("data.max_train_samples", None, "all rows"),
    "val_max_samples": unless_negative("data.max_val_samples", None, "all rows"),
    "reward_fn_key": only(("data_source", None), "the scorer is picked by `data_source`"),
    "filter_overlong_prompts": meanings.filter_overlong,
    "truncation": meanings.truncation,
    **inert("data"),
    **off("data"),
    "apply_chat_template_kwargs.*": only((), TEMPLATE),
}

ALGORITHM: Mapping[str, Rule] = {
    "adv_estimator": policy.estimator,
    "gamma": same("algorithm.gamma"),
    "lam": same("algorithm.gae_lambda"),
    "norm_adv_by_std_in_grpo": same("algorithm.normalize_by_std"),
    "use_kl_in_reward": policy.use_kl_in_reward,
    **{
        name: where(KL_IN_REWARD, rule, otherwise=NO_KL_IN_REWARD, warn=True)
        for name, rule in {
            "kl_penalty": policy.use_kl_in_reward,
            "kl_ctrl.type": same("algorithm.kl_controller.type"),
            "kl_ctrl.kl_coef": same("algorithm.kl_coef"),
            "kl_ctrl.horizon": same("algorithm.kl_controller.horizon"),
            "kl_ctrl.target_kl": same("algorithm.kl_controller.target"),
        }.items()
    },
    "filter_groups.enable": same("algorithm.dynamic_sampling", reason="groups of one reward are replaced"),
    "filter_groups.metric": where(
        FILTER, other_than(policy.WHOLE_REWARD, "responses are compared by their whole reward"), otherwise=NO_FILTER
    ),
    "filter_groups.max_num_gen_batches": where(FILTER, policy.filter_rounds, otherwise=NO_FILTER),
    "gdpo_reward_keys": same("algorithm.gdpo.parts"),
    "gdpo_reward_weights": same("algorithm.gdpo.weights"),
    **inert("algorithm"),
    "rollout_correction.rollout_is": correction.importance,
    "rollout_correction.rollout_is_threshold": correction.importance_bound,
    "rollout_correction.rollout_is_batch_normalize": correction.normalize,
    "rollout_correction.rollout_rs": correction.rejection,
    "rollout_correction.rollout_rs_threshold": correction.rejection_bound,
    "rollout_correction.rollout_rs_threshold_lower": correction.rejection_bound,
    **off("algorithm"),
    "rollout_correction.bypass_mode": correction.bypass,
    "rollout_correction.loss_type": correction.loss_type,
    "rollout_correction.use_policy_gradient": correction.loss_type,
}

CUSTOM_REWARD: Mapping[str, Rule] = {
    "path": reward.custom_reward,
    "name": reward.custom_reward,
    "reward_kwargs": reward.reward_argument,
    "reward_kwargs.*": reward.reward_argument,
}
NO_MANAGER = f"the managers are {quoted(reward.MANAGERS)}; {OWN_REWARD}"
MANAGERS = only((None, *reward.MANAGERS), "every response is scored", otherwise=NO_MANAGER)
MANAGER: Mapping[str, Rule] = {
    "name": MANAGERS,
    "source": only(("register",), "built in", otherwise=OWN_REWARD),
}
REWARD_ARGUMENTS: Mapping[str, Rule] = {
    "overlong_buffer_cfg.*": reward.overlong,
    "max_resp_len": reward.longest_response,
}
RESOURCE_POOL: Mapping[str, Rule] = dict.fromkeys(
    ("enable_resource_pool", "n_gpus_per_node", "nnodes"), reward.resource_pool
)
SANDBOX: Mapping[str, Rule] = {**off("sandbox"), **inert("sandbox")}

REWARD: Mapping[str, Rule] = {
    **under("reward.custom_reward_function", CUSTOM_REWARD),
    **under("custom_reward_function", CUSTOM_REWARD),
    **under("reward.reward_manager", MANAGER),
    **under("reward_manager", MANAGER),
    **under("reward.reward_kwargs", REWARD_ARGUMENTS),
    "reward.reward_model.enable": reward.reward_model,
    "reward.reward_model.model_path": reward.reward_model,
    "reward_model.enable": reward.reward_model,
    "reward_model.model.path": reward.reward_model,
    **under("reward.reward_model", RESOURCE_POOL),
    **under("reward_model", RESOURCE_POOL),
    "reward_model.reward_manager": MANAGERS,
    "reward_model.overlong_buffer.*": reward.overlong,
    **under("reward_model.reward_kwargs", REWARD_ARGUMENTS),
    **inert("reward"),
    **under("reward.sandbox_fusion", SANDBOX),
    **under("sandbox_fusion", SANDBOX),
    **off("reward"),
}

TRAINER: Mapping[str, Rule] = {
    "total_epochs": same("trainer.num_epochs"),
    "total_training_steps": same("trainer.num_steps"),
    "project_name": same("trainer.project"),
    "experiment_name": same("trainer.experiment"),
    "logger": meanings.loggers,
    "n_gpus_per_node": same("plan.num_devices", reason="of each node"),
    "nnodes": same("plan.num_nodes"),
    "save_freq": unless_negative("trainer.save_every", 0, "only at the end"),
    "test_freq": unless_negative("trainer.validate_every", 0, "only at the end"),
    "val_before_train": same("trainer.validate_before"),
    "critic_warmup": meanings.critic_warmup,
    "default_local_dir": same("trainer.output_dir"),
    "resume_mode": meanings.resume_mode,
    "resume_from_path": meanings.resume_path,
    "max_actor_ckpt_to_keep": same("trainer.keep_checkpoints"),
    "max_critic_ckpt_to_keep": same("trainer.keep_checkpoints"),
    "remove_previous_ckpt_in_save": meanings.only_newest_checkpoint,
    "device": renamed("plan.device", {"cuda": "cuda", "cpu": "cpu"}, reason=""),
    "v1.trainer_mode": asynchronous.trainer_mode,
    **off("trainer"),
    **inert("trainer"),
}

FULLY_ASYNC: Mapping[str, Rule] = {
    **asynchronous.ASYNC_TRAINING,
    **inert("fully_async"),
    "rollout.total_rollout_steps": only((None,), "off", otherwise="give `trainer.total_training_steps`"),
    "rollout.total_epochs": same("trainer.num_epochs"),
    "rollout.test_freq": unless_negative("trainer.validate_every", 0, "only at the end"),
}
"keys of the asynchronous trainer in verl"

OTHERS: Mapping[str, Rule] = {
    "model_engine": other_than(("dp",), "one engine serves any number of devices"),
    "*@*": only((), "config groups of verl have no alternatives here"),
    "--config-name": meanings.config_name,
    "--multirun": only((), "one run at a time"),
    **off("others"),
    **inert("others"),
}

KEYS: Mapping[str, Rule] = {
    **under("data", DATA),
    **ROLES,
    **under("actor_rollout_ref.rollout", ROLLOUT),
    **under("algorithm", ALGORITHM),
    **REWARD,
    **under("trainer", TRAINER),
    **FULLY_ASYNC,
    **OTHERS,
}
"full key, or pattern with `*`, to rule; an exact key has precedence"

DEFAULTS_THAT_DIFFER: Mapping[str, tuple[str, str]] = {
    "data.train_batch_size": ("1024", "trainer.batch_size"),
    "data.max_response_length": ("512", "data.max_response_length"),
    "data.filter_overlong_prompts": ("false", "data.overlong_prompts"),
    "trainer.total_epochs": ("30", "trainer.num_epochs"),
    "trainer.save_freq": ("-1", "trainer.save_every"),
    "trainer.logger": ("console,wandb", "trainer.loggers"),
    "trainer.n_gpus_per_node": ("8", "plan.num_devices"),
    "actor_rollout_ref.actor.ppo_mini_batch_size": ("256", "trainer.mini_batch_size"),
}
"verl's default and the native key, where our default differs and affects the run"

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
    f"{meanings.ACTOR}.use_dynamic_bsz": True,
    f"{meanings.ACTOR}.use_kl_loss": True,
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


ABSENT = "-"
"marks a release without the key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """The table: names of the releases from old to new, and for each key its default in each of them."""

    names: Sequence[str]
    defaults: Mapping[str, Sequence[Any]]

    def having(self, key: str) -> tuple[str, ...]:
        """The releases that have a key; empty for a key that verl never had."""
        given = self.defaults.get(key, ())
        return tuple(name for name, default in zip(self.names, given, strict=False) if default != ABSENT)

    def newest_default(self, key: str) -> Any:
        """The default in the newest release that has the key. Raises KeyError if none has it."""
        return next(default for default in reversed(self.defaults[key]) if default != ABSENT)

    def is_default(self, key: str, value: Any) -> bool:
        """Whether a value is the key's default in any release."""
        return any(default == value and default != ABSENT for default in self.defaults.get(key, ()))


@cache
def releases() -> Releases:
    """The shipped table."""
    table = json.loads(files("rl_compat.verl.keys").joinpath("verl_releases.json").read_text(encoding="utf-8"))
    return Releases(names=tuple(table["releases"]), defaults=table["keys"])
