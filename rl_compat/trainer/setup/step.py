"""The settings of a reinforcement learning step."""

from __future__ import annotations

from rl_compat.algorithms.kl import KLController, make_kl_controller
from rl_compat.algorithms.lagrangian import LagrangeMultiplier
from rl_compat.algorithms.losses.policy import POLICY_LOSSES
from rl_compat.algorithms.table import ALGORITHMS, policy_loss_of
from rl_compat.config.types import AlgorithmConfig, RunConfig
from rl_compat.objectives.experience import ExperienceSettings
from rl_compat.trainer.loop import StepSettings
from rl_compat.trainer.online.sampling import SamplingSettings
from rl_compat.workers.setup import optimizer_steps_per_batch


def step_settings(config: RunConfig) -> StepSettings:
    algorithm = config.algorithm
    row = ALGORITHMS[algorithm.name]
    return StepSettings(
        experience=ExperienceSettings(algorithm=algorithm, off_policy=config.off_policy),
        sampling=SamplingSettings(
            rollout=config.rollout,
            group_size=algorithm.group_size,
            max_new_tokens=config.data.max_response_length,
            max_rounds=algorithm.max_sampling_rounds if algorithm.dynamic_sampling else None,
        ),
        one_update=one_update(config),
        sum_pi_squared=row.needs_sum_pi_squared,
        greedy_response=row.needs_greedy_response,
        reward_parts=algorithm.gdpo.parts if row.needs_reward_parts else None,
        reward_part_weights=algorithm.gdpo.weights,
    )


def one_update(config: RunConfig) -> bool:
    """Whether every log-probability of a step comes from the weights that the update starts from.

    A KL in the reward, off-policy correction, and a loss that selects tokens from a whole mini-batch need
    log-probabilities before the update. With `off_policy.bypass` the rollout's serve as the old ones.
    """
    algorithm, off_policy = config.algorithm, config.off_policy
    return (
        optimizer_steps_per_batch(config) == 1
        and POLICY_LOSSES[policy_loss_of(algorithm.name, algorithm.policy_loss)].select is None
        and algorithm.kl_in_reward == "none"
        and config.model.lora_dropout == 0.0
        and off_policy.importance == "none"
        and not off_policy.reject
        and not off_policy.vtrace.enabled
        and not off_policy.bypass
    )


def lagrange_multiplier(config: AlgorithmConfig) -> LagrangeMultiplier | None:
    """The Lagrange multiplier of the cost constraint, if the algorithm has one."""
    if not ALGORITHMS[config.name].needs_cost:
        return None
    return LagrangeMultiplier(
        limit=config.lagrangian.cost_limit,
        learning_rate=config.lagrangian.lr,
        initial=config.lagrangian.init,
        maximum=config.lagrangian.max,
    )


def kl_controller(config: AlgorithmConfig) -> KLController:
    return make_kl_controller(
        config.kl_controller.type,
        coef=config.kl_coef,
        target=config.kl_controller.target,
        horizon=config.kl_controller.horizon,
    )
