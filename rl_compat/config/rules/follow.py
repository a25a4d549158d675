"""Values that give way: where one that nobody gave contradicts one that somebody gave, it follows that one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.rules.conflicts import WEIGHTS, compares_groups
from rl_compat.config.rules.pools import rollout_goes_on
from rl_compat.config.settings import GROUP_SIZE, replace, values_of
from rl_compat.config.types import OffPolicyConfig, RunConfig


@dataclass(frozen=True, slots=True)
class Followed:
    """A value that follows another setting."""

    key: str
    value: Any
    cause: str
    "the key that it follows"


STALE_TRUNCATE = 2.0
"bound of the importance weights of responses that an older policy drew"

Rule = Callable[[RunConfig, RunConfig], Iterator[Followed]]
"the values that follow, given a configuration and the one that it started from"


def followed(config: RunConfig, base: RunConfig, given: Collection[str]) -> Iterator[Followed]:
    """The values that follow those of `given`; none of these is changed. `base` is the configuration without them."""
    for rule in RULES:
        changes = [change for change in rule(config, base) if change.key not in given]
        changes = [change for change in changes if values_of(config)[change.key] != change.value]
        config = replace(config, {change.key: change.value for change in changes})
        yield from changes


def _batches(config: RunConfig, base: RunConfig) -> Iterator[Followed]:
    """The mini-batch is the closest divisor of the batch; of a given mini-batch the batch is the closest multiple."""
    batch, mini = config.trainer.batch_size, config.trainer.mini_batch_size
    if batch < 1 or mini < 1 or batch % mini == 0:
        return
    if mini == base.trainer.mini_batch_size:
        divisors = [size for size in range(1, batch + 1) if batch % size == 0]
        yield Followed("trainer.mini_batch_size", _closest(divisors, mini), "trainer.batch_size")
    elif batch == base.trainer.batch_size:
        multiples = [mini * max(1, batch // mini), mini * (batch // mini + 1)]
        yield Followed("trainer.batch_size", _closest(multiples, batch), "trainer.mini_batch_size")


def _closest(sizes: list[int], wanted: int) -> int:
    return min(sizes, key=lambda size: max(size, wanted) / min(size, wanted))


def _groups(config: RunConfig, base: RunConfig) -> Iterator[Followed]:
    if config.algorithm.group_size == 1 and compares_groups(config):
        named = ALGORITHMS[config.algorithm.name].needs_groups
        yield Followed("algorithm.group_size", GROUP_SIZE, f"algorithm.{'name' if named else 'dynamic_sampling'}")


def _data(config: RunConfig, base: RunConfig) -> Iterator[Followed]:
    """Other training data has its own validation data and rewards."""
    if config.data.train_files != base.data.train_files:
        yield Followed("data.val_files", (), "data.train_files")
        yield Followed("reward.functions", RunConfig().reward.functions, "data.train_files")


def _weights(config: RunConfig, base: RunConfig) -> Iterator[Followed]:
    """Other names than those of the weights count equally."""
    for key, (names, _, _) in WEIGHTS.items():
        if attrgetter(names)(config) != attrgetter(names)(base):
            yield Followed(key, (), names)


def _kl_of_parts(config: RunConfig, base: RunConfig) -> Iterator[Followed]:
    """Where the parts of the reward are normalized separately, the KL penalty is a term of the loss."""
    algorithm = config.algorithm
    if ALGORITHMS[algorithm.name].needs_reward_parts and algorithm.kl_in_reward != "none":
        yield Followed("algorithm.kl_in_reward", "none", "algorithm.name")
        yield Followed("algorithm.kl_loss", "k3", "algorithm.name")
        yield Followed("algorithm.kl_loss_coef", algorithm.kl_coef, "algorithm.name")


def applies_ratio(off_policy: OffPolicyConfig) -> bool:
    """Whether the ratio of the learning policy to the one that generated is in the loss, its weights or the advantages.

    Rejection leaves out tokens where it is large, and does not apply it to the others.
    """
    return off_policy.bypass or off_policy.vtrace.enabled or off_policy.importance != "none"


def _stale(config: RunConfig, base: RunConfig) -> Iterator[Followed]:
    """The ratio of the learning policy to an older one that generated is applied."""
    stale = config.trainer.flow == "async" and config.trainer.max_staleness > 0
    if stale and not applies_ratio(config.off_policy):
        yield Followed("off_policy.importance", "token", "trainer.flow")


def _stale_bound(config: RunConfig, base: RunConfig) -> Iterator[Followed]:
    off_policy = config.off_policy
    if config.trainer.flow == "async" and off_policy.importance != "none" and off_policy.band is None:
        yield Followed("off_policy.truncate", off_policy.truncate or STALE_TRUNCATE, "trainer.flow")


def _on_update(config: RunConfig, base: RunConfig) -> Iterator[Followed]:
    """Where the rollout uses several devices of the actor, weights cannot change during a call."""
    if config.trainer.flow == "async" and not rollout_goes_on(config):
        yield Followed("rollout.on_update", "wait", "trainer.flow")


def _warmup(config: RunConfig, base: RunConfig) -> Iterator[Followed]:
    """A warm-up that would not end within the run takes a tenth of it."""
    trainer, warmup = config.trainer, config.optimizer.warmup_steps
    if trainer.num_steps is not None and trainer.mini_batch_size >= 1:
        per_step = max(1, trainer.batch_size // trainer.mini_batch_size) * config.algorithm.num_epochs
        if warmup >= trainer.num_steps * per_step >= 1:
            yield Followed("optimizer.warmup_steps", trainer.num_steps * per_step // 10, "trainer.num_steps")


RULES: tuple[Rule, ...] = (_batches, _groups, _data, _weights, _kl_of_parts, _warmup, _stale, _stale_bound, _on_update)
"in an order in which none changes what an earlier one looked at"
