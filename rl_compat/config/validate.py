"""Which values of the settings make sense, alone and together, whatever the hardware."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rl_compat.algorithms.rejection_rules import parse_rejection_rules
from rl_compat.algorithms.table import ALGORITHMS, WITHOUT_RATIO, policy_loss_of
from rl_compat.config.settings import values_of
from rl_compat.config.types import RunConfig
from rl_compat.errors import ConfigError, nearest

LOGGERS = ("console", "jsonl", "tensorboard", "wandb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A setting whose value cannot be used, and what can be done."""

    key: str
    message: str
    hint: str | None = None


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


def validate(config: RunConfig, origins: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError for the first setting that cannot be used. `origins` says where a key was set."""
    for problem in problems(config):
        origin = (origins or {}).get(problem.key)
        message = f"{origin}: {problem.message}" if origin else problem.message
        raise ConfigError(message, hint=problem.hint)


def problems(config: RunConfig) -> Iterator[Problem]:
    """Everything wrong with a configuration, in the order of the settings."""
    for key, value in values_of(config).items():
        yield from _alone(key, value)
    for check in TOGETHER:
        yield from check(config)


def _alone(key: str, value: Any) -> Iterator[Problem]:
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


def batch_sizes(config: RunConfig) -> Iterator[Problem]:
    """Mini-batches divide the batch; both count prompts."""
    batch, mini, group = config.trainer.batch_size, config.trainer.mini_batch_size, config.algorithm.group_size
    if batch < 1 or mini < 1 or batch % mini == 0:
        return
    fitting = [size for size in range(1, batch + 1) if batch % size == 0]
    near = sorted(fitting, key=lambda size: (abs(size - mini), size))[:2]
    message = (
        f"`trainer.mini_batch_size` is {_prompts(mini, group)} "
        f"and does not divide `trainer.batch_size`, {_prompts(batch, group)}"
    )
    hint = "set `trainer.mini_batch_size` to " + " or ".join(str(size) for size in sorted(near))
    if group > 1 and mini % group == 0 and batch % (mini // group) == 0:
        hint = f"it counts prompts: {mini} responses are `trainer.mini_batch_size={mini // group}`"
    yield Problem(key="trainer.mini_batch_size", message=message, hint=hint)


def _prompts(count: int, group_size: int) -> str:
    return f"{count} prompts" + (f" ({count * group_size} responses)" if group_size > 1 else "")


def groups(config: RunConfig) -> Iterator[Problem]:
    """What compares the responses of one prompt needs two."""
    algorithm = config.algorithm
    if algorithm.group_size > 1:
        return
    compares = "`algorithm.dynamic_sampling`" if algorithm.dynamic_sampling else ""
    if ALGORITHMS[algorithm.name].needs_groups:
        compares = f"`algorithm.name={algorithm.name}`"
    if compares:
        yield Problem(
            key="algorithm.group_size",
            message=f"{compares} compares the responses of one prompt and `algorithm.group_size` is 1",
            hint="set `algorithm.group_size=8`, or any number from 2",
        )


def covariance_bounds(config: RunConfig) -> Iterator[Problem]:
    """The bounds of `clip_cov` have room between them."""
    low, high = config.algorithm.clip_cov_low, config.algorithm.clip_cov_high
    if low >= high:
        yield Problem(
            key="algorithm.clip_cov_high",
            message=f"`algorithm.clip_cov_low` is {low} and must be below `algorithm.clip_cov_high`, {high}",
        )


def reward_weights(config: RunConfig) -> Iterator[Problem]:
    """One weight per reward function, or none."""
    num_functions, num_weights = len(config.reward.functions), len(config.reward.weights)
    if num_weights not in (0, num_functions):
        yield Problem(
            key="reward.weights",
            message=f"`reward.weights` has {num_weights} numbers and `reward.functions` has {num_functions} functions",
            hint="give one weight per function, or none for equal weights",
        )


def reward_parts(config: RunConfig) -> Iterator[Problem]:
    """Something scores, and the overlong penalty lies inside the longest response."""
    reward, longest = config.reward, config.data.max_response_length
    if not reward.functions and reward.model is None:
        yield Problem(key="reward.functions", message="`reward.functions` is empty", hint="set `reward.functions=auto`")
    if reward.overlong_buffer > longest:
        yield Problem(
            key="reward.overlong_buffer",
            message=f"`reward.overlong_buffer` is {reward.overlong_buffer} tokens and a response has at most {longest}",
            hint="it is the last part of `data.max_response_length`, in which the penalty grows",
        )
    if reward.sources and "auto" not in reward.functions:
        yield Problem(
            key="reward.sources",
            message="`reward.sources` says what `auto` takes, and `reward.functions` has no `auto`",
            hint="set `reward.functions=auto`, or leave `reward.sources` out",
        )


def reward_by_parts(config: RunConfig) -> Iterator[Problem]:
    """Parts that are compared one by one: one weight each, and no KL penalty, which is no part."""
    algorithm = config.algorithm
    names, weights = algorithm.reward_parts, algorithm.reward_part_weights
    if weights and len(weights) != len(names):
        yield Problem(
            key="algorithm.reward_part_weights",
            message=f"`algorithm.reward_part_weights` has {len(weights)} numbers and `algorithm.reward_parts` has "
            f"{len(names)} names",
            hint="name each part, and give one weight for each",
        )
    if ALGORITHMS[algorithm.name].needs_reward_parts and algorithm.kl_in_reward != "none":
        yield Problem(
            key="algorithm.kl_in_reward",
            message=f"`algorithm.name={algorithm.name}` compares the parts of the reward one by one, and "
            f"`algorithm.kl_in_reward={algorithm.kl_in_reward}` is none of them",
            hint=f"use `algorithm.kl_loss={algorithm.kl_in_reward}`",
        )


def importance_bounds(config: RunConfig) -> Iterator[Problem]:
    """Weights are cut at a bound or held in a band."""
    band, truncate = config.off_policy.band, config.off_policy.truncate
    if band is not None and truncate is not None:
        yield Problem(
            key="off_policy.band",
            message=f"`off_policy.band` is {band} and `off_policy.truncate` is {truncate}: only one of them can hold",
            hint="set one of them to `none`",
        )
    if band is not None and band[0] >= band[1]:
        yield Problem(
            key="off_policy.band",
            message=f"`off_policy.band` goes from {band[0]} to {band[1]}, which holds nothing",
            hint="give the lower bound first, for example `off_policy.band=0.5,2`",
        )


def rejection_rules(config: RunConfig) -> Iterator[Problem]:
    """Rules that exist, each once."""
    try:
        parse_rejection_rules(config.off_policy.reject)
    except ValueError as error:
        yield Problem(key="off_policy.reject", message=f"`off_policy.reject`: {error}")


def bypass(config: RunConfig) -> Iterator[Problem]:
    """With the sampler's log-probabilities as the old ones a loss with a ratio corrects by itself."""
    off_policy = config.off_policy
    loss = policy_loss_of(config.algorithm.name, config.algorithm.policy_loss)
    if not off_policy.bypass:
        return
    if off_policy.importance != "none" and loss not in WITHOUT_RATIO:
        yield Problem(
            key="off_policy.importance",
            message=f"under `off_policy.bypass` the ratio in `algorithm.policy_loss={loss}` is that to the sampler "
            f"already, and `off_policy.importance={off_policy.importance}` would count it twice",
            hint="set `off_policy.importance=none`, or `algorithm.policy_loss=reinforce`",
        )
    if off_policy.vtrace:
        yield Problem(
            key="off_policy.vtrace",
            message="`off_policy.vtrace` compares the trainer's log-probabilities with the sampler's, and "
            "`off_policy.bypass` computes only the sampler's",
            hint="set one of them to `false`",
        )


def vtrace(config: RunConfig) -> Iterator[Problem]:
    """The advantages of V-trace are weighted already."""
    off_policy = config.off_policy
    if off_policy.vtrace and off_policy.importance != "none":
        yield Problem(
            key="off_policy.importance",
            message=f"the advantages of `off_policy.vtrace` hold the ratio already, and "
            f"`off_policy.importance={off_policy.importance}` would count it twice",
            hint="set `off_policy.importance=none`",
        )


def mixture_weights(config: RunConfig) -> Iterator[Problem]:
    """One weight per name in the training data, or none."""
    num_files, num_weights = len(config.data.train_files), len(config.data.mixture_weights)
    if num_weights not in (0, num_files):
        yield Problem(
            key="data.mixture_weights",
            message=f"`data.mixture_weights` has {num_weights} numbers and `data.train_files` has {num_files} names",
            hint="give one weight per name, where a folder or a pattern is one, or none for one dataset of all rows",
        )


def cost(config: RunConfig) -> Iterator[Problem]:
    """A cost where it is held below a limit, with one weight per function, or none; and a price within its bounds."""
    cost, algorithm = config.cost, config.algorithm
    if not ALGORITHMS[algorithm.name].needs_cost:
        return
    if not cost.functions and cost.model is None:
        yield Problem(
            key="cost.functions",
            message=f"`algorithm.name={algorithm.name}` holds a cost below a limit, and `cost.functions` is empty",
            hint="set `cost.functions=file.py:function`, or `cost.model` to a learned one",
        )
    if len(cost.weights) not in (0, len(cost.functions)):
        yield Problem(
            key="cost.weights",
            message=f"`cost.weights` has {len(cost.weights)} numbers and `cost.functions` has {len(cost.functions)} "
            "functions",
            hint="give one weight per function, or none for equal weights",
        )
    if algorithm.lagrange_init > algorithm.lagrange_max:
        yield Problem(
            key="algorithm.lagrange_init",
            message=f"`algorithm.lagrange_init` is {algorithm.lagrange_init} and `algorithm.lagrange_max` "
            f"is {algorithm.lagrange_max}",
            hint="the price starts at `lagrange_init` and never goes above `lagrange_max`",
        )


def loggers(config: RunConfig) -> Iterator[Problem]:
    """Only trackers that exist."""
    for name in config.trainer.loggers:
        if name not in LOGGERS:
            close = nearest(name, LOGGERS)
            hint = f"did you mean `{close}`" if close else f"use some of {', '.join(f'`{known}`' for known in LOGGERS)}"
            yield Problem(key="trainer.loggers", message=f"`trainer.loggers` has no tracker `{name}`", hint=hint)


def quantized_base(config: RunConfig) -> Iterator[Problem]:
    """A 4-bit base cannot be trained itself."""
    if config.plan.quantization != "none" and config.model.lora_rank == 0:
        yield Problem(
            key="plan.quantization",
            message=f"`plan.quantization={config.plan.quantization}` freezes the base and `model.lora_rank` is 0",
            hint="set `model.lora_rank=16`, or `plan.quantization=none`",
        )


def token_budget(config: RunConfig) -> Iterator[Problem]:
    """The longest sequence, or the two of a pair, fit into one micro-batch."""
    pairs = ALGORITHMS[config.algorithm.name].learns_from == "preference"
    longest = (config.data.max_prompt_length + config.data.max_response_length) * (2 if pairs else 1)
    budget = config.plan.max_tokens_per_micro_batch
    if isinstance(budget, int) and 1 <= budget < longest:
        what = "the longest pair" if pairs else "the longest sequence"
        yield Problem(
            key="plan.max_tokens_per_micro_batch",
            message=f"`plan.max_tokens_per_micro_batch` is {budget} and {what} has {longest} tokens",
            hint=f"set it to {longest} or more, or shorten `data.max_prompt_length` or `data.max_response_length`",
        )


def pairs(config: RunConfig) -> Iterator[Problem]:
    """What is compared is computed together, and a loss that needs other rows has some."""
    name = config.algorithm.name
    if ALGORITHMS[name].learns_from == "preference" and config.plan.micro_batch_size == 1:
        yield Problem(
            key="plan.micro_batch_size",
            message=f"`plan.micro_batch_size` is 1 and `algorithm.name={name}` compares two sequences",
            hint="set `plan.micro_batch_size=2`, or leave it out",
        )
    if name == "kto" and config.trainer.mini_batch_size == 1:
        yield Problem(
            key="trainer.mini_batch_size",
            message="`trainer.mini_batch_size` is 1 and `algorithm.name=kto` estimates a mean over a mini-batch",
            hint="set `trainer.mini_batch_size=8`, or more",
        )


TOGETHER: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    batch_sizes,
    groups,
    covariance_bounds,
    reward_by_parts,
    cost,
    importance_bounds,
    rejection_rules,
    bypass,
    vtrace,
    reward_weights,
    reward_parts,
    mixture_weights,
    loggers,
    quantized_base,
    token_budget,
    pairs,
)
