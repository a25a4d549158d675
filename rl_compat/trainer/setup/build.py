"""From a request to a run that can start: everything is checked first, then the models are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from rl_compat.algorithms.kl import KLController, make_kl_controller
from rl_compat.algorithms.lagrangian import LagrangeMultiplier
from rl_compat.algorithms.losses.policy import POLICY_LOSSES
from rl_compat.algorithms.table import ALGORITHMS, policy_loss_of
from rl_compat.config.types import AlgorithmConfig, RewardConfig, RunConfig
from rl_compat.errors import ModelError
from rl_compat.hardware.types import Hardware
from rl_compat.objectives.experience import ExperienceSettings
from rl_compat.planning.memory.budget import checkpoint_bytes
from rl_compat.planning.types import CRITIC_ROLES, RoleName
from rl_compat.rewards.builtin.table import check_rows
from rl_compat.trainer.checkpoints import check_disk
from rl_compat.trainer.loop import Roles, StepSettings
from rl_compat.trainer.online.prompt_data import load_training_data, load_validation_prompts
from rl_compat.trainer.online.sampling import SamplingSettings
from rl_compat.trainer.recipe import PreparedRun
from rl_compat.trainer.reporter import Reporter
from rl_compat.trajectory import Prompt
from rl_compat.workers.actor import ActorModel, actor_settings
from rl_compat.workers.critic import CriticModel, critic_settings
from rl_compat.workers.reference import ReferenceModel, reference_settings
from rl_compat.workers.reward import RewardModel
from rl_compat.workers.reward_model import reward_model_settings
from rl_compat.workers.setup import Setup, optimizer_steps_per_batch, prepare


@dataclass(frozen=True, kw_only=True)
class Prepared(PreparedRun):
    """Prepared reinforcement learning."""

    prompts: Sequence[Prompt]
    validation_prompts: tuple[Prompt, ...]
    reward: RewardModel
    cost: RewardModel | None
    "where the algorithm holds one below a limit"

    def close(self) -> None:
        """End the processes of the functions, and give back the memory of reward models."""
        self.reward.close()
        if self.cost is not None:
            self.cost.close()


def check_run(config: RunConfig, hardware: Hardware) -> Prepared:
    """Everything that can be wrong before weights are loaded.

    Raises ConfigError, DataError, ModelError, HardwareError or DoesNotFitError.
    """
    setup = prepare(config, hardware)
    plan = setup.plan
    if "critic" in plan.roles:
        check_critic_ids(setup)
    size = checkpoint_bytes(setup.workload, plan)
    training, notes = load_training_data(setup)
    validation, validation_notes = load_validation_prompts(setup)
    prompts = [*training.sample(), *validation]
    order = training.order(config.trainer.batch_size, shuffle=config.data.shuffle, seed=config.data.seed)
    total_steps = config.trainer.num_steps or config.trainer.num_epochs * order.steps_per_epoch
    check_disk(config.trainer, size, total_steps=total_steps)
    return Prepared(
        setup=setup,
        checkpoint_bytes=size,
        prompts=training.prompts,
        validation_prompts=validation,
        reward=start_reward(setup, prompts),
        cost=start_cost(setup, prompts),
        order=order,
        total_steps=total_steps,
        notes=(*setup.notes, *notes, *validation_notes, *plan.notes),
    )


def start_reward(setup: Setup, prompts: Sequence[Prompt]) -> RewardModel:
    """The reward of the settings, checked against the prompts. Raises DataError or ConfigError."""
    return _start(setup, prompts, setup.config.reward, "reward")


def start_cost(setup: Setup, prompts: Sequence[Prompt]) -> RewardModel | None:
    """The cost of the settings, where the algorithm has one. Raises DataError or ConfigError."""
    if not ALGORITHMS[setup.config.algorithm.name].needs_cost:
        return None
    return _start(setup, prompts, cost_config(setup.config), "cost")


def cost_config(config: RunConfig) -> RewardConfig:
    """The cost as a reward of its own; settings that `[cost]` does not have come from `[reward]`."""
    cost = config.cost
    return replace(
        config.reward,
        functions=cost.functions,
        weights=cost.weights,
        function_arguments=cost.function_arguments,
        model=cost.model,
        model_weight=cost.model_weight,
        overlong_buffer=0,
    )


def _start(setup: Setup, prompts: Sequence[Prompt], config: RewardConfig, role: RoleName) -> RewardModel:
    check_rows(prompts, config.functions, config.sources)
    return RewardModel(
        config,
        data_sources=sorted({prompt.data_source for prompt in prompts}),
        pool=setup.pool_of(role),
        max_response_length=setup.config.data.max_response_length,
        learned=reward_model_settings(setup, role),
    )


def check_critic_ids(setup: Setup) -> None:
    """Raise ModelError for a critic whose vocabulary is smaller than the actor's."""
    sampled, known = min(setup.shape.vocab_size, setup.tokenizer.num_tokens), setup.workload.models["critic"].vocab_size
    if known < sampled:
        raise ModelError(
            f"the critic knows {known} token ids and the actor samples from {sampled}",
            hint="set `model.critic_path` to a model with the actor's tokenizer",
        )


def build_roles(prepared: Prepared, reporter: Reporter) -> Roles:
    """Load the models the algorithm needs onto the planned device."""
    setup = prepared.setup
    config = setup.config
    actor = load_actor(setup, reporter, num_batches=max(0, prepared.total_steps - config.algorithm.critic_warmup_steps))
    critics = {}
    for role in [role for role in CRITIC_ROLES if role in setup.plan.roles]:
        reporter.phase(f"loading the {role.replace('_', ' ')}")
        settings = critic_settings(setup, role=role, num_batches=prepared.total_steps)
        critics[role] = CriticModel(settings, pool=setup.pool_of(role))
    reference = None
    if "reference" in {phase.name for phase in setup.workload.phases}:
        reporter.phase("loading the reference")
        reference = (
            ReferenceModel.start(reference_settings(setup), pool=setup.pool_of("reference"))
            if "reference" in setup.plan.roles
            else ReferenceModel.of_adapter(actor)
        )
    if config.reward.model is not None:
        reporter.phase("loading the reward model")
        prepared.reward.load()
    if prepared.cost is not None and config.cost.model is not None:
        reporter.phase("loading the cost model")
        prepared.cost.load()
    return Roles(
        actor=actor,
        reward=prepared.reward,
        critic=critics.get("critic"),
        reference=reference,
        cost=prepared.cost,
        cost_critic=critics.get("cost_critic"),
    )


def load_actor(setup: Setup, reporter: Reporter, *, num_batches: int | None = None, trains: bool = True) -> ActorModel:
    """The actor alone, with torch's threads as planned; without an optimizer when it only generates."""
    set_num_threads(setup)
    reporter.phase("loading the actor")
    settings = actor_settings(setup, num_batches=num_batches)
    settings = settings if trains else replace(settings, optimizer=None)
    return ActorModel(settings, pool=setup.pool_of("actor"), chat=setup.chat)


def set_num_threads(setup: Setup) -> None:
    """Give torch the planned number of CPU threads."""
    num_threads = setup.plan.pool_of("actor").num_threads
    if num_threads is not None:
        torch.set_num_threads(num_threads)


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
    """Whether the weights that the update starts from are those of every log-probability that a step needs.

    A KL in the reward and off-policy correction need log-probabilities before the update, and so does a loss that
    chooses tokens from a whole mini-batch. Under bypass the sampler's are the old ones.
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
    """The price of the cost, where the algorithm has one."""
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
