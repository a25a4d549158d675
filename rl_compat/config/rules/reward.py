"""Rules between the settings of rewards and costs, and for lists of weights."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.report import Problem
from rl_compat.config.types import RunConfig

ONE_PER_FUNCTION = "give one weight per function, or none for equal weights"
ONE_PER_FILE = "give one weight per name (a folder or pattern is one name), or none to form one dataset"
WEIGHTS = {
    "algorithm.gdpo.weights": ("algorithm.gdpo.parts", "names", "name each part, and give one weight for each"),
    "cost.weights": ("cost.functions", "functions", ONE_PER_FUNCTION),
    "reward.weights": ("reward.functions", "functions", ONE_PER_FUNCTION),
    "data.mixture_weights": ("data.train_files", "names", ONE_PER_FILE),
}
"lists of weights to what they weight, a noun for it, and a hint"


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
    """A constrained algorithm has a cost, and a multiplier within bounds."""
    cost, algorithm = config.cost, config.algorithm
    if not ALGORITHMS[algorithm.name].needs_cost:
        return
    if not cost.functions and cost.model is None:
        yield Problem(
            key="cost.functions",
            message=f"`algorithm.name={algorithm.name}` limits a cost, and `cost.functions` is empty",
            hint="set `cost.functions=file.py:function`, or `cost.model` to a cost model",
        )
    if algorithm.lagrangian.init > algorithm.lagrangian.max:
        yield Problem(
            key="algorithm.lagrangian.init",
            message=f"`algorithm.lagrangian.init` is {algorithm.lagrangian.init} and `algorithm.lagrangian.max` "
            f"is {algorithm.lagrangian.max}",
            hint="the Lagrange multiplier starts at `init` and never exceeds `max`",
        )


def weights(config: RunConfig) -> Iterator[Problem]:
    """One weight per name, or none."""
    for key, (names, noun, hint) in WEIGHTS.items():
        num_weights, num_names = len(attrgetter(key)(config)), len(attrgetter(names)(config))
        is_read = key != "cost.weights" or ALGORITHMS[config.algorithm.name].needs_cost
        if is_read and num_weights not in (0, num_names):
            message = f"`{key}` has {num_weights} numbers and `{names}` has {num_names} {noun}"
            yield Problem(key=key, message=message, hint=hint)


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
