"""What settings must fulfil, alone and together, independent of the hardware."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter

from rl_compat.algorithms.off_policy.rejection_rules import parse_rejection_rules
from rl_compat.algorithms.table import ALGORITHMS, WITHOUT_RATIO, is_offline, policy_loss_of
from rl_compat.config.report import Problem
from rl_compat.config.rules.inert import inert_reasons
from rl_compat.config.rules.pools import engines, pools, rollout_goes_on, rollout_has_pool, shards
from rl_compat.config.settings import settings, values_of
from rl_compat.config.types import RunConfig
from rl_compat.config.values import violations
from rl_compat.errors import ConfigError

ONE_PER_FUNCTION = "give one weight per function, or none for equal weights"
ONE_PER_FILE = "give one weight per name (a folder or pattern is one name), or none to form one dataset"
WEIGHTS = {
    "algorithm.gdpo.weights": ("algorithm.gdpo.parts", "names", "name each part, and give one weight for each"),
    "cost.weights": ("cost.functions", "functions", ONE_PER_FUNCTION),
    "reward.weights": ("reward.functions", "functions", ONE_PER_FUNCTION),
    "data.mixture_weights": ("data.train_files", "names", ONE_PER_FILE),
}
"lists of weights to what they weight, a noun for it, and a hint"


ORDERED = (
    ("algorithm.critic_warmup_steps", "below", "trainer.num_steps"),
    ("algorithm.clip_cov.low", "below", "algorithm.clip_cov.high"),
    ("algorithm.lagrangian.init", "at most", "algorithm.lagrangian.max"),
    ("reward.overlong_buffer", "at most", "data.max_response_length"),
)
"pairs of numbers, the smaller first"


def validate(config: RunConfig, origins: Mapping[str, str]) -> None:
    """Raise ConfigError for the first invalid setting. `origins` maps keys to the places that set them."""
    for problem in problems(config):
        raise ConfigError(with_origins(problem, origins), hint=problem.hint)


def with_origins(problem: Problem, origins: Mapping[str, str]) -> str:
    """The message, after the place that set the value and before those that set the other values in it."""
    named = dict.fromkeys(key for key in re.findall(r"`([\w.]+)[`=]", problem.message) if key in settings())
    places = {key: origins.get(key) for key in named if key != problem.key}
    others = [
        f"`{key}` " + ("has its default" if place is None else f"is set by {place}" if place else "is given")
        for key, place in places.items()
    ]
    told = f"{problem.message}; {', '.join(others)}" if others else problem.message
    origin = origins.get(problem.key)
    return f"{origin}: {told}" if origin else told


def problems(config: RunConfig) -> Iterator[Problem]:
    """All problems of a configuration: of each setting alone, then of several together where they have an effect."""
    for key, value in values_of(config).items():
        for words in violations(value, settings()[key].annotation):
            yield Problem(key=key, message=f"`{key}` {words}")
    inert = inert_reasons(config)
    for check in TOGETHER:
        yield from (problem for problem in check(config) if problem.key not in inert)


def batch_sizes(config: RunConfig) -> Iterator[Problem]:
    """The mini-batch size divides the batch size; both count prompts."""
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
    """What compares the responses of one prompt needs at least two."""
    name = compares_groups(config)
    if name and config.algorithm.group_size == 1:
        yield Problem(
            key="algorithm.group_size",
            message=f"{name} compares the responses of one prompt and `algorithm.group_size` is 1",
            hint="set `algorithm.group_size=8`, or any number from 2",
        )


def compares_groups(config: RunConfig) -> str:
    """What compares the responses of one prompt, if anything does."""
    algorithm = config.algorithm
    if ALGORITHMS[algorithm.name].needs_groups:
        return f"`algorithm.name={algorithm.name}`"
    return "`algorithm.dynamic_sampling`" if algorithm.dynamic_sampling else ""


def ordered(config: RunConfig) -> Iterator[Problem]:
    """The first number of each pair is the smaller one."""
    for low, words, high in ORDERED:
        smaller, larger = attrgetter(low)(config), attrgetter(high)(config)
        if larger is not None and (smaller > larger or (smaller == larger and words == "below")):
            yield Problem(key=low, message=f"`{low}` is {smaller} and must be {words} `{high}`, {larger}")


def importance_bounds(config: RunConfig) -> Iterator[Problem]:
    """Importance weights are truncated or limited to a band, not both."""
    band, truncate = config.off_policy.band, config.off_policy.truncate
    if band is not None and truncate is not None:
        yield Problem(
            key="off_policy.band",
            message=f"`off_policy.band` is {band} and `off_policy.truncate` is {truncate}: set only one of them",
            hint="set one of them to `none`",
        )
    if band is not None and band[0] >= band[1]:
        yield Problem(
            key="off_policy.band",
            message=f"`off_policy.band` goes from {band[0]} to {band[1]}, which is empty",
            hint="give the lower bound first, for example `off_policy.band=0.5,2`",
        )


def rejection_rules(config: RunConfig) -> Iterator[Problem]:
    """Rejection rules exist, and each is given once."""
    try:
        parse_rejection_rules(config.off_policy.reject)
    except ValueError as error:
        yield Problem(key="off_policy.reject", message=f"`off_policy.reject`: {error}")


def corrected_once(config: RunConfig) -> Iterator[Problem]:
    """The ratio to the rollout policy is applied once, and V-trace has the log-probabilities that it needs."""
    off_policy = config.off_policy
    importance = f"`off_policy.importance={off_policy.importance}`"
    loss = policy_loss_of(config.algorithm.name, config.algorithm.policy_loss)
    if off_policy.bypass and off_policy.importance != "none" and loss not in WITHOUT_RATIO:
        yield Problem(
            key="off_policy.importance",
            message=f"with `off_policy.bypass` the ratio in `algorithm.policy_loss={loss}` already compares with the "
            f"rollout policy, and {importance} would apply it twice",
            hint="set `off_policy.importance=none`, or `algorithm.policy_loss=reinforce`",
        )
    if off_policy.bypass and off_policy.vtrace.enabled:
        yield Problem(
            key="off_policy.vtrace.enabled",
            message="`off_policy.vtrace.enabled` needs the trainer's log-probabilities, and `off_policy.bypass` "
            "does not compute them",
            hint="set one of them to `false`",
        )
    if off_policy.vtrace.enabled and off_policy.importance != "none":
        yield Problem(
            key="off_policy.importance",
            message="the advantages of `off_policy.vtrace.enabled` already contain the ratio, and "
            f"{importance} would apply it twice",
            hint="set `off_policy.importance=none`",
        )


def asynchronous(config: RunConfig) -> Iterator[Problem]:
    """There is something to overlap, and weights do not change during a response on several devices of the actor."""
    name, on_update = config.algorithm.name, config.rollout.on_update
    if config.trainer.flow == "sync":
        return
    if is_offline(name):
        yield Problem(
            key="trainer.flow",
            message=f"`trainer.flow=async` generates while it learns, and `algorithm.name={name}` generates nothing",
            hint="remove `trainer.flow`",
        )
    elif on_update != "wait" and not rollout_goes_on(config):
        yield Problem(
            key="rollout.on_update",
            message=f"`rollout.on_update={on_update}` changes weights between two tokens, and the rollout uses the "
            "devices of the actor, which are several",
            hint="give it devices of its own (`--pool gen=1:rollout`), or set `rollout.on_update=wait`",
        )
    yield from _dropping(config)
    yield from _token_budget(config)


def _dropping(config: RunConfig) -> Iterator[Problem]:
    """What is dropped is made on other devices, and something newer is there in its place."""
    if config.trainer.on_stale == "wait":
        return
    if not rollout_has_pool(config):
        yield Problem(
            key="trainer.on_stale",
            message="`trainer.on_stale=drop` generates without a pause, and the rollout works on devices of the actor",
            hint="give it devices of its own (`--pool gen=1:rollout`), or set `trainer.on_stale=wait`",
        )
    if config.trainer.max_staleness < 2:
        yield Problem(
            key="trainer.on_stale",
            message=f"`trainer.on_stale=drop` keeps the newest of several finished steps, and "
            f"`trainer.max_staleness={config.trainer.max_staleness}` allows one",
            hint="set `trainer.max_staleness=2` or more",
        )


def _token_budget(config: RunConfig) -> Iterator[Problem]:
    """Prompts that a step has no room for are learned from in a later one, within the bound."""
    trainer, budget = config.trainer, config.trainer.batch_tokens
    if budget is None:
        return
    if trainer.max_staleness == 0:
        yield Problem(
            key="trainer.batch_tokens",
            message="`trainer.batch_tokens` leaves responses to a later step, which `trainer.max_staleness=0` forbids",
            hint="set `trainer.max_staleness=1` or more",
        )
    if trainer.num_steps is None:
        yield Problem(
            key="trainer.batch_tokens",
            message=f"the number of steps is unknown with `trainer.batch_tokens={budget}`",
            hint="set `trainer.num_steps`",
        )
    if config.algorithm.dynamic_sampling:
        yield Problem(
            key="trainer.batch_tokens",
            message="`trainer.batch_tokens` divides what is generated by prompts, and `algorithm.dynamic_sampling` "
            "replaces some of them",
            hint="remove one of the two",
        )


def reused_samples(config: RunConfig) -> Iterator[Problem]:
    """There are enough uses for the draws, and a critic where its error is the priority."""
    reuse, replay, name = config.samples.most_uses, config.samples.replay, config.algorithm.name
    if replay.draws != "auto" and replay.draws > reuse - 1:
        yield Problem(
            key="samples.replay.draws",
            message=f"`samples.replay.draws` is {replay.draws:g} and `samples.reuse={reuse}` lasts for {reuse - 1}",
            hint=f"set `samples.replay.draws={reuse - 1}`, or raise `samples.reuse`",
        )
    if replay.priority == "td_error" and not ALGORITHMS[name].needs_critic:
        yield Problem(
            key="samples.replay.priority",
            message=f"`samples.replay.priority=td_error` reads a critic, and `algorithm.name={name}` has none",
            hint="set `samples.replay.priority=advantage`",
        )


def reward_by_parts(config: RunConfig) -> Iterator[Problem]:
    """Parts that are normalized separately exclude a KL penalty in the reward."""
    algorithm = config.algorithm
    if ALGORITHMS[algorithm.name].needs_reward_parts and algorithm.kl_in_reward != "none":
        yield Problem(
            key="algorithm.kl_in_reward",
            message=f"`algorithm.name={algorithm.name}` normalizes the parts of the reward separately, and "
            f"`algorithm.kl_in_reward={algorithm.kl_in_reward}` is not one of them",
            hint=f"use `algorithm.kl_loss={algorithm.kl_in_reward}`",
        )


def cost(config: RunConfig) -> Iterator[Problem]:
    """A constrained algorithm has a cost."""
    if not config.cost.functions and config.cost.model is None:
        yield Problem(
            key="cost.functions",
            message=f"`algorithm.name={config.algorithm.name}` limits a cost, and `cost.functions` is empty",
            hint="set `cost.functions=file.py:function`, or `cost.model` to a cost model",
        )


def weights(config: RunConfig) -> Iterator[Problem]:
    """One weight per name, or none."""
    for key, (names, noun, hint) in WEIGHTS.items():
        num_weights, num_names = len(attrgetter(key)(config)), len(attrgetter(names)(config))
        if num_weights not in (0, num_names):
            message = f"`{key}` has {num_weights} numbers and `{names}` has {num_names} {noun}"
            yield Problem(key=key, message=message, hint=hint)


def reward_parts(config: RunConfig) -> Iterator[Problem]:
    """There is a reward, and `auto` where it is configured."""
    reward = config.reward
    if not reward.functions and reward.model is None:
        yield Problem(key="reward.functions", message="`reward.functions` is empty", hint="set `reward.functions=auto`")
    if reward.sources and "auto" not in reward.functions:
        yield Problem(
            key="reward.sources",
            message="`reward.sources` configures `auto`, and `reward.functions` has no `auto`",
            hint="set `reward.functions=auto`, or remove `reward.sources`",
        )


def quantized_base(config: RunConfig) -> Iterator[Problem]:
    """A quantized base needs adapters."""
    if config.plan.quantization != "none" and config.model.lora_rank == 0:
        yield Problem(
            key="plan.quantization",
            message=f"`plan.quantization={config.plan.quantization}` freezes the base and `model.lora_rank` is 0",
            hint="set `model.lora_rank=16`, or `plan.quantization=none`",
        )


def longest_sequence(config: RunConfig) -> Iterator[Problem]:
    """The longest sequence, or pair, fits into one micro-batch and into the rollout."""
    data, pairs = config.data, ALGORITHMS[config.algorithm.name].learns_from == "preference"
    longest = (data.max_prompt_length + data.max_response_length) * (2 if pairs else 1)
    for key in ("plan.max_tokens_per_micro_batch", "rollout.max_model_len"):
        budget = attrgetter(key)(config)
        if isinstance(budget, int) and 1 <= budget < longest:
            yield Problem(
                key=key,
                message=f"`{key}` is {budget} and the longest {'pair' if pairs else 'sequence'} has {longest} tokens "
                "(`data.max_prompt_length` and `data.max_response_length`)",
                hint=f"set it to {longest} or more, or shorten `data.max_prompt_length` or `data.max_response_length`",
            )


def pairs(config: RunConfig) -> Iterator[Problem]:
    """A micro-batch holds a pair, and a mini-batch of KTO has several rows."""
    name = config.algorithm.name
    if ALGORITHMS[name].learns_from == "preference" and config.plan.micro_batch_size == 1:
        yield Problem(
            key="plan.micro_batch_size",
            message=f"`plan.micro_batch_size` is 1 and `algorithm.name={name}` compares two sequences",
            hint="set `plan.micro_batch_size=2`, or remove it",
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
    ordered,
    reward_by_parts,
    cost,
    importance_bounds,
    rejection_rules,
    corrected_once,
    asynchronous,
    reused_samples,
    weights,
    reward_parts,
    quantized_base,
    longest_sequence,
    pairs,
    pools,
    shards,
    engines,
)
"in the order of reporting"
