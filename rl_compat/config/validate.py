"""Which values of the settings make sense, alone and together, whatever the hardware."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rl_compat.config import conflicts_learning, conflicts_reward, conflicts_run
from rl_compat.config.problem import Problem
from rl_compat.config.ranges import out_of_range
from rl_compat.config.settings import values_of
from rl_compat.config.types import RunConfig
from rl_compat.errors import ConfigError

TOGETHER: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    conflicts_run.batch_sizes,
    conflicts_learning.groups,
    conflicts_learning.covariance_bounds,
    conflicts_reward.reward_by_parts,
    conflicts_reward.cost,
    conflicts_learning.importance_bounds,
    conflicts_learning.rejection_rules,
    conflicts_learning.bypass,
    conflicts_learning.vtrace,
    conflicts_reward.reward_weights,
    conflicts_reward.reward_parts,
    conflicts_run.mixture_weights,
    conflicts_run.loggers,
    conflicts_run.quantized_base,
    conflicts_run.token_budget,
    conflicts_run.pairs,
)
"in the order in which they are said"


def validate(config: RunConfig, origins: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError for the first setting that cannot be used. `origins` says where a key was set."""
    for problem in problems(config):
        origin = (origins or {}).get(problem.key)
        message = f"{origin}: {problem.message}" if origin else problem.message
        raise ConfigError(message, hint=problem.hint)


def problems(config: RunConfig) -> Iterator[Problem]:
    """Everything wrong with a configuration, in the order of the settings."""
    for key, value in values_of(config).items():
        yield from out_of_range(key, value)
    for check in TOGETHER:
        yield from check(config)
