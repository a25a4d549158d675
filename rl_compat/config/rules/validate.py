"""Validation of settings, alone and in combination, independent of the hardware."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rl_compat.config.report import Problem
from rl_compat.config.rules import learning, reward, run
from rl_compat.config.settings import settings, values_of
from rl_compat.config.types import RunConfig
from rl_compat.config.values import violations
from rl_compat.errors import ConfigError

TOGETHER: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    run.batch_sizes,
    learning.groups,
    learning.covariance_bounds,
    reward.reward_by_parts,
    reward.cost,
    learning.importance_bounds,
    learning.rejection_rules,
    learning.bypass,
    learning.vtrace,
    reward.weights,
    reward.reward_parts,
    run.quantized_base,
    run.token_budget,
    run.pairs,
)
"in the order of reporting"


def validate(config: RunConfig, origins: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError for the first invalid setting. `origins` maps keys to the places that set them."""
    for problem in problems(config):
        origin = (origins or {}).get(problem.key)
        message = f"{origin}: {problem.message}" if origin else problem.message
        raise ConfigError(message, hint=problem.hint)


def problems(config: RunConfig) -> Iterator[Problem]:
    """All problems of a configuration, in the order of the settings."""
    for key, value in values_of(config).items():
        for words in violations(value, settings()[key].annotation):
            yield Problem(key=key, message=f"`{key}` {words}")
    for check in TOGETHER:
        yield from check(config)
