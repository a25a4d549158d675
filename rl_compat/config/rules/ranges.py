"""What each setting may be whatever the others are: numbers in a range, and texts that are not empty."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rl_compat.config.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A condition on a number and its words."""

    holds: Callable[[float], bool]
    words: str


AT_LEAST_ONE = Range(holds=lambda value: value >= 1, words="at least 1")
NOT_NEGATIVE = Range(holds=lambda value: value >= 0, words="at least 0")
POSITIVE = Range(holds=lambda value: value > 0, words="above 0")
ABOVE_ONE = Range(holds=lambda value: value > 1, words="above 1")
FRACTION = Range(holds=lambda value: 0 < value <= 1, words="above 0 and at most 1")
ZERO_TO_ONE = Range(holds=lambda value: 0 <= value <= 1, words="between 0 and 1")
BELOW_HALF = Range(holds=lambda value: 0 <= value < 0.5, words="at least 0 and below 0.5")
BELOW_ONE = Range(holds=lambda value: 0 <= value < 1, words="at least 0 and below 1")

RANGES: Mapping[str, Range] = {
    "model.lora_rank": NOT_NEGATIVE,
    "model.lora_alpha": POSITIVE,
    "model.lora_dropout": BELOW_ONE,
    "data.max_prompt_length": AT_LEAST_ONE,
    "data.max_response_length": AT_LEAST_ONE,
    "data.max_train_samples": AT_LEAST_ONE,
    "data.max_val_samples": AT_LEAST_ONE,
    "data.mixture_weights": POSITIVE,
    "data.seed": NOT_NEGATIVE,
    "reward.overlong_buffer": NOT_NEGATIVE,
    "reward.overlong_penalty": NOT_NEGATIVE,
    "reward.num_processes": AT_LEAST_ONE,
    "reward.timeout_seconds": POSITIVE,
    "algorithm.gamma": ZERO_TO_ONE,
    "algorithm.gae_lambda": ZERO_TO_ONE,
    "algorithm.group_size": AT_LEAST_ONE,
    "algorithm.clip_low": FRACTION,
    "algorithm.clip_high": POSITIVE,
    "algorithm.clip_dual": ABOVE_ONE,
    "algorithm.clip_value": POSITIVE,
    "algorithm.sapo_tau_positive": POSITIVE,
    "algorithm.sapo_tau_negative": POSITIVE,
    "algorithm.dro_beta": POSITIVE,
    "algorithm.clip_cov_fraction": FRACTION,
    "algorithm.kl_cov_fraction": FRACTION,
    "algorithm.kl_cov_coef": NOT_NEGATIVE,
    "algorithm.max_sampling_rounds": AT_LEAST_ONE,
    "algorithm.lagrange_lr": NOT_NEGATIVE,
    "algorithm.lagrange_init": POSITIVE,
    "algorithm.lagrange_max": POSITIVE,
    "algorithm.kl_coef": NOT_NEGATIVE,
    "algorithm.kl_target": POSITIVE,
    "algorithm.kl_horizon": AT_LEAST_ONE,
    "algorithm.kl_loss_coef": NOT_NEGATIVE,
    "algorithm.num_epochs": AT_LEAST_ONE,
    "algorithm.critic_warmup_steps": NOT_NEGATIVE,
    "off_policy.truncate": POSITIVE,
    "off_policy.band": NOT_NEGATIVE,
    "off_policy.vtrace_rho": POSITIVE,
    "off_policy.vtrace_c": POSITIVE,
    "preference.beta": POSITIVE,
    "preference.label_smoothing": BELOW_HALF,
    "preference.desirable_weight": NOT_NEGATIVE,
    "preference.undesirable_weight": NOT_NEGATIVE,
    "preference.margin": NOT_NEGATIVE,
    "rollout.temperature": POSITIVE,
    "rollout.top_p": FRACTION,
    "rollout.top_k": NOT_NEGATIVE,
    "rollout.min_p": BELOW_ONE,
    "rollout.max_num_seqs": AT_LEAST_ONE,
    "rollout.max_num_batched_tokens": AT_LEAST_ONE,
    "rollout.max_model_len": AT_LEAST_ONE,
    "rollout.gpu_memory_utilization": FRACTION,
    "rollout.seed": NOT_NEGATIVE,
    "optimizer.actor_lr": NOT_NEGATIVE,
    "optimizer.critic_lr": NOT_NEGATIVE,
    "optimizer.betas": BELOW_ONE,
    "optimizer.eps": POSITIVE,
    "optimizer.weight_decay": NOT_NEGATIVE,
    "optimizer.max_grad_norm": POSITIVE,
    "optimizer.warmup_steps": NOT_NEGATIVE,
    "optimizer.min_lr_fraction": ZERO_TO_ONE,
    "trainer.batch_size": AT_LEAST_ONE,
    "trainer.mini_batch_size": AT_LEAST_ONE,
    "trainer.num_steps": AT_LEAST_ONE,
    "trainer.num_epochs": AT_LEAST_ONE,
    "trainer.max_seconds": POSITIVE,
    "trainer.save_every": NOT_NEGATIVE,
    "trainer.keep_checkpoints": AT_LEAST_ONE,
    "trainer.validate_every": NOT_NEGATIVE,
    "trainer.validation_temperature": NOT_NEGATIVE,
    "trainer.num_sample_generations": NOT_NEGATIVE,
    "trainer.seed": NOT_NEGATIVE,
    "plan.num_devices": AT_LEAST_ONE,
    "plan.micro_batch_size": AT_LEAST_ONE,
    "plan.max_tokens_per_micro_batch": AT_LEAST_ONE,
    "plan.logprob_chunk_tokens": AT_LEAST_ONE,
    "plan.memory_fraction": FRACTION,
}
"every number must be finite; these also lie in a range. None and `auto` always pass"

NOT_EMPTY = (
    "model.path",
    "model.lora_targets",
    "data.train_files",
    "data.prompt_key",
    "trainer.output_dir",
)


def out_of_range(key: str, value: Any) -> Iterator[Problem]:
    """Problems with the value of one setting, alone."""
    if key in NOT_EMPTY and not value:
        yield Problem(key=key, message=f"`{key}` is empty")
    if key == "rollout.stop_strings" and "" in value:
        yield Problem(key=key, message=f"`{key}` holds an empty text, which every response begins with")
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        allowed = RANGES.get(key)
        if not math.isfinite(number):
            yield Problem(key=key, message=f"`{key}` is {number} and must be finite")
        elif allowed is not None and not allowed.holds(number):
            yield Problem(key=key, message=f"`{key}` is {number} and must be {allowed.words}")
