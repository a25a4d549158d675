"""Rules between the settings of rewards and costs."""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.problem import Problem
from rl_compat.config.types import RunConfig


def reward_by_parts(config: RunConfig) -> Iterator[Problem]:
    """Parts that are normalized separately have one weight each, without a KL penalty in the reward."""
    algorithm = config.algorithm
    names, weights = algorithm.gdpo.parts, algorithm.gdpo.weights
    if weights and len(weights) != len(names):
        yield Problem(
            key="algorithm.gdpo.weights",
            message=f"`algorithm.gdpo.weights` has {len(weights)} numbers and `algorithm.gdpo.parts` has "
            f"{len(names)} names",
            hint="name each part, and give one weight for each",
        )
    if ALGORITHMS[algorithm.name].needs_reward_parts and algorithm.kl_in_reward != "none":
        yield Problem(
            key="algorithm.kl_in_reward",
            message=f"`algorithm.name={algorithm.name}` normalizes the parts of the reward separately, and "
            f"`algorithm.kl_in_reward={algorithm.kl_in_reward}` is not one of them",
            hint=f"use `algorithm.kl_loss={algorithm.kl_in_reward}`",
        )


def cost(config: RunConfig) -> Iterator[Problem]:
    """A constrained algorithm has a cost, one weight per function or none, and a multiplier within bounds."""
    cost, algorithm = config.cost, config.algorithm
    if not ALGORITHMS[algorithm.name].needs_cost:
        return
    if not cost.functions and cost.model is None:
        yield Problem(
            key="cost.functions",
            message=f"`algorithm.name={algorithm.name}` limits a cost, and `cost.functions` is empty",
            hint="set `cost.functions=file.py:function`, or `cost.model` to a cost model",
        )
    if len(cost.weights) not in (0, len(cost.functions)):
        yield Problem(
            key="cost.weights",
            message=f"`cost.weights` has {len(cost.weights)} numbers and `cost.functions` has {len(cost.functions)} "
            "functions",
            hint="give one weight per function, or none for equal weights",
        )
    if algorithm.lagrangian.init > algorithm.lagrangian.max:
        yield Problem(
            key="algorithm.lagrangian.init",
            message=f"`algorithm.lagrangian.init` is {algorithm.lagrangian.init} and `algorithm.lagrangian.max` "
            f"is {algorithm.lagrangian.max}",
            hint="the Lagrange multiplier starts at `init` and never exceeds `max`",
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
    """There is a reward, and the overlong penalty fits into the maximum response length."""
    reward, longest = config.reward, config.data.max_response_length
    if not reward.functions and reward.model is None:
        yield Problem(key="reward.functions", message="`reward.functions` is empty", hint="set `reward.functions=auto`")
    if reward.overlong_buffer > longest:
        yield Problem(
            key="reward.overlong_buffer",
            message=f"`reward.overlong_buffer` is {reward.overlong_buffer} tokens and a response has at most {longest}",
            hint="it is the last part of `data.max_response_length`, over which the penalty grows",
        )
    if reward.sources and "auto" not in reward.functions:
        yield Problem(
            key="reward.sources",
            message="`reward.sources` configures `auto`, and `reward.functions` has no `auto`",
            hint="set `reward.functions=auto`, or remove `reward.sources`",
        )
