"""Rules between the settings of the algorithm and of off-policy correction."""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.algorithms.off_policy.rejection_rules import parse_rejection_rules
from rl_compat.algorithms.table import ALGORITHMS, WITHOUT_RATIO, policy_loss_of
from rl_compat.config.report import Problem
from rl_compat.config.types import RunConfig


def groups(config: RunConfig) -> Iterator[Problem]:
    """Algorithms that compare the responses of one prompt need at least two."""
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
    """The bounds of `clip_cov` are ordered."""
    low, high = config.algorithm.clip_cov.low, config.algorithm.clip_cov.high
    if low >= high:
        yield Problem(
            key="algorithm.clip_cov.high",
            message=f"`algorithm.clip_cov.low` is {low} and must be below `algorithm.clip_cov.high`, {high}",
        )


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


def bypass(config: RunConfig) -> Iterator[Problem]:
    """With bypass, the ratio of the loss already corrects for the rollout policy."""
    off_policy = config.off_policy
    loss = policy_loss_of(config.algorithm.name, config.algorithm.policy_loss)
    if not off_policy.bypass:
        return
    if off_policy.importance != "none" and loss not in WITHOUT_RATIO:
        yield Problem(
            key="off_policy.importance",
            message=f"with `off_policy.bypass` the ratio in `algorithm.policy_loss={loss}` already compares with the "
            f"rollout policy, and `off_policy.importance={off_policy.importance}` would apply it twice",
            hint="set `off_policy.importance=none`, or `algorithm.policy_loss=reinforce`",
        )
    if off_policy.vtrace.enabled:
        yield Problem(
            key="off_policy.vtrace.enabled",
            message="`off_policy.vtrace.enabled` needs the trainer's log-probabilities, and `off_policy.bypass` "
            "does not compute them",
            hint="set one of them to `false`",
        )


def vtrace(config: RunConfig) -> Iterator[Problem]:
    """V-trace already weights the advantages."""
    off_policy = config.off_policy
    if off_policy.vtrace.enabled and off_policy.importance != "none":
        yield Problem(
            key="off_policy.importance",
            message=f"the advantages of `off_policy.vtrace.enabled` already contain the ratio, and "
            f"`off_policy.importance={off_policy.importance}` would apply it twice",
            hint="set `off_policy.importance=none`",
        )
