"""Checks of reinforcement learning before weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.types import RewardConfig, RunConfig
from rl_compat.hardware.types import Hardware
from rl_compat.planning.memory.budget import checkpoint_bytes
from rl_compat.planning.types import RoleName
from rl_compat.rewards.checks import check_rows
from rl_compat.trainer.checkpoints import check_disk
from rl_compat.trainer.online.prompt_data import load_training_data, load_validation_prompts
from rl_compat.trainer.online.reuse import reuse_notes, stored_bytes
from rl_compat.trainer.recipe import PreparedRun
from rl_compat.trainer.setup.objects import PythonObjects
from rl_compat.trajectory import Prompt
from rl_compat.workers.reward import RewardModel
from rl_compat.workers.reward_model import reward_model_settings
from rl_compat.workers.setup import Setup, prepare


@dataclass(frozen=True, kw_only=True)
class Prepared(PreparedRun):
    """Prepared reinforcement learning."""

    prompts: Sequence[Prompt]
    validation_prompts: tuple[Prompt, ...]
    reward: RewardModel
    cost: RewardModel | None
    "for algorithms with a cost constraint"

    def close(self) -> None:
        """End the processes of reward functions and free the memory of reward models."""
        self.reward.close()
        if self.cost is not None:
            self.cost.close()


def check_run(config: RunConfig, hardware: Hardware, objects: PythonObjects = PythonObjects()) -> Prepared:
    """Check everything that can be checked before weights are loaded.

    Raises ConfigError, DataError, ModelError, HardwareError or DoesNotFitError.
    """
    objects.check(config.reward.functions, key="reward.functions")
    setup = prepare(config, hardware)
    plan = setup.plan
    size = checkpoint_bytes(setup.workload, plan)
    training, notes = load_training_data(setup, objects)
    validation, validation_notes = load_validation_prompts(setup, objects)
    prompts = [*training.sample(), *validation]
    order = training.order(config.trainer.batch_size, shuffle=config.data.shuffle, seed=config.data.seed)
    total_steps = config.trainer.num_steps or config.trainer.num_epochs * order.steps_per_epoch
    on_disk = stored_bytes(config, total_steps=total_steps)
    check_disk(config.trainer, size + on_disk.buffer, total_steps=total_steps, record_bytes=on_disk.record)
    return Prepared(
        setup=setup,
        checkpoint_bytes=size,
        prompts=training.prompts,
        validation_prompts=validation,
        reward=start_reward(setup, prompts, objects),
        cost=start_cost(setup, prompts, objects),
        order=order,
        total_steps=total_steps,
        notes=(*setup.notes, *reuse_notes(config), *notes, *validation_notes, *plan.notes),
    )


def start_reward(setup: Setup, prompts: Sequence[Prompt], objects: PythonObjects = PythonObjects()) -> RewardModel:
    """The reward of the settings, checked against the prompts. Raises DataError or ConfigError."""
    return _start(setup, prompts, setup.config.reward, "reward", objects)


def start_cost(setup: Setup, prompts: Sequence[Prompt], objects: PythonObjects = PythonObjects()) -> RewardModel | None:
    """The cost of the settings, where the algorithm has one. Raises DataError or ConfigError."""
    if not ALGORITHMS[setup.config.algorithm.name].needs_cost:
        return None
    return _start(setup, prompts, cost_config(setup.config), "cost", objects)


def cost_config(config: RunConfig) -> RewardConfig:
    """The cost as a reward; settings that `[cost]` lacks come from `[reward]`."""
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


def _start(
    setup: Setup, prompts: Sequence[Prompt], config: RewardConfig, role: RoleName, objects: PythonObjects
) -> RewardModel:
    check_rows(prompts, config.functions, config.sources)
    learned = reward_model_settings(setup, role)
    return RewardModel(
        config,
        data_sources=sorted({prompt.data_source for prompt in prompts}),
        pool=setup.pool_of(role),
        max_response_length=setup.config.data.max_response_length,
        learned=None if learned is None else lambda: learned,
        callables=objects.functions,
    ).start()
