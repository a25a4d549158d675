"""From what a user asks for to what each role's workers are built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from rl_compat.algorithms.table import ALGORITHMS, is_offline
from rl_compat.config.settings import settings_by_algorithm
from rl_compat.config.types import (
    AlgorithmConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    PlanConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    StepConfig,
    TrainerConfig,
)
from rl_compat.distributed.pool import ResourcePool
from rl_compat.errors import ConfigError, nearest
from rl_compat.hardware.types import Hardware
from rl_compat.models.chat import ChatEncoder
from rl_compat.models.files.folder import ALL_PARTS, Part
from rl_compat.models.files.registry import ModelSource, resolve_model
from rl_compat.models.lora import LoraSettings
from rl_compat.models.tokenizer import TokenizerBundle, load_tokenizer
from rl_compat.objectives.actor_critic import LossSettings
from rl_compat.objectives.experience import ExperienceSettings
from rl_compat.planning.fit import make_plan
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.speed.measurements import own_measurements
from rl_compat.planning.types import CRITIC_ROLES, Plan, PoolPlan, RoleName
from rl_compat.planning.workload import Workload, run_requests, run_workload, shared_workload
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.workers.actor import ActorSettings
from rl_compat.workers.critic import CriticSettings
from rl_compat.workers.reference import ReferenceSettings
from rl_compat.workers.reward_model import RewardModelSettings

WITHOUT_TOKENIZER: tuple[Part, ...] = ("config", "weights")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A request that was checked against files and hardware, and its plan; no weights are loaded yet."""

    config: RunConfig
    hardware: Hardware
    sources: Mapping[RoleName, ModelSource]
    "of the actor, and of the critic, reward model and cost model that are models of their own"
    tokenizer: TokenizerBundle
    chat: ChatEncoder
    workload: Workload
    plan: Plan
    pools: Mapping[str, ResourcePool]
    "by the names of the plan"

    def pool_of(self, role: RoleName) -> ResourcePool:
        """Where a role works; a role without weights works with the actor."""
        return self.pools[self.plan.roles.get(role, self.plan.roles["actor"]).pool]

    @property
    def source(self) -> ModelSource:
        """Of the actor."""
        return self.sources["actor"]

    @property
    def shape(self) -> ModelShape:
        """Of the actor."""
        return self.workload.models["actor"]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth knowing about the model and its tokenizer."""
        return (*self.source.notes, *self.tokenizer.notes, *self.chat.notes)


def prepare(
    config: RunConfig,
    hardware: Hardware,
    *,
    describe: Callable[[RunConfig, Mapping[RoleName, ModelShape]], Workload] = run_workload,
) -> Setup:
    """Find the models and the tokenizer, and plan what `describe` makes of them.

    Raises ModelError, HardwareError, ConfigError or DoesNotFitError.
    """
    model = config.model
    sources = _find_sources(config)
    tokenizer = load_tokenizer(
        tokenizer_folder(model, sources["actor"].folder),
        model_folder=sources["actor"].folder,
        trust_remote_code=model.trust_remote_code,
    )
    chat = ChatEncoder(tokenizer, model.chat_template)
    workload = describe(config, {role: ModelShape.from_folder(source.folder) for role, source in sources.items()})
    plan = make_plan(workload, hardware, run_requests(config), measured=own_measurements())
    return Setup(
        config=config,
        hardware=hardware,
        sources=sources,
        tokenizer=tokenizer,
        chat=chat,
        workload=workload,
        plan=plan,
        pools={name: _resource_pool(pool, hardware) for name, pool in plan.pools.items()},
    )


def _resource_pool(pool: PoolPlan, hardware: Hardware) -> ResourcePool:
    gpus = [int(device.removeprefix("cuda:")) for device in pool.devices if device != "cpu"]
    return ResourcePool(gpus=gpus, hardware=hardware)


def _find_sources(config: RunConfig) -> dict[RoleName, ModelSource]:
    """Where the models of the settings are, by the role that has one of its own. Raises ModelError."""
    model, row = config.model, ALGORITHMS[config.algorithm.name]
    sources: dict[RoleName, ModelSource] = {}
    sources["actor"] = resolve_model(model.path, needs=WITHOUT_TOKENIZER if model.tokenizer else ALL_PARTS)
    if model.critic_path and row.needs_critic:
        sources["critic"] = resolve_model(model.critic_path, needs=WITHOUT_TOKENIZER)
    if config.reward.model and not is_offline(row.name):
        sources["reward"] = resolve_model(config.reward.model, needs=ALL_PARTS)
    if config.cost.model and row.needs_cost:
        sources["cost"] = resolve_model(config.cost.model, needs=ALL_PARTS)
    return sources


def tokenizer_folder(model: ModelConfig, model_folder: Path) -> Path:
    """The model's own folder unless another was asked for."""
    return resolve_model(model.tokenizer, needs=("tokenizer",)).folder if model.tokenizer else model_folder


def actor_settings(setup: Setup, *, num_batches: int | None = None) -> ActorSettings:
    """`num_batches` the actor learns from are what its learning-rate schedule spans; None for a constant rate."""
    config, plan = setup.config, setup.plan
    algorithm = config.algorithm
    assert plan.rollout is not None, "an actor generates"
    return ActorSettings(
        model_folder=setup.source.folder,
        role=plan.roles["actor"],
        rollout=plan.rollout,
        pad_token_id=setup.tokenizer.pad_token_id,
        num_valid_tokens=setup.tokenizer.num_tokens,
        optimizer=optimizer_settings(config, config.optimizer.actor_lr, num_batches),
        lora=lora_settings(config.model),
        loss=loss_settings(config),
        off_policy=config.off_policy,
        temperature=config.rollout.temperature,
        stop_strings=config.rollout.stop_strings,
        decode=partial(setup.tokenizer.tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False),
        num_epochs=algorithm.num_epochs,
        mini_batch_size=config.trainer.mini_batch_size,
        trust_remote_code=config.model.trust_remote_code,
    )


def loss_settings(config: RunConfig) -> LossSettings:
    return LossSettings(algorithm=config.algorithm, width=config.data.max_response_length)


def critic_settings(setup: Setup, *, role: RoleName = "critic", num_batches: int | None = None) -> CriticSettings:
    """Of the critic, or with `role="cost_critic"` of that of the cost."""
    config = setup.config
    return CriticSettings(
        model_folder=setup.sources.get("critic", setup.source).folder,
        role=setup.plan.roles[role],
        optimizer=optimizer_settings(config, config.optimizer.critic_lr, num_batches),
        lora=lora_settings(config.model),
        loss=loss_settings(config),
        num_epochs=config.algorithm.num_epochs,
        mini_batch_size=config.trainer.mini_batch_size,
        trust_remote_code=config.model.trust_remote_code,
    )


def reference_settings(setup: Setup) -> ReferenceSettings:
    return ReferenceSettings(
        model_folder=setup.source.folder,
        role=setup.plan.roles["reference"],
        temperature=setup.config.rollout.temperature,
        trust_remote_code=setup.config.model.trust_remote_code,
    )


def cost_config(config: RunConfig) -> RewardConfig:
    """The cost as a reward of its own; what `[cost]` does not say is as in `[reward]`."""
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


def reward_model_settings(setup: Setup, role: RoleName = "reward") -> RewardModelSettings | None:
    """Of the reward model or, with `role="cost"`, of the cost model; None without one."""
    if role not in setup.sources:
        return None
    return RewardModelSettings(
        model_folder=setup.sources[role].folder,
        role=setup.plan.roles[role],
        trust_remote_code=setup.config.model.trust_remote_code,
    )


def plan_reward_model(
    path: str, hardware: Hardware, *, max_prompt_length: int, max_response_length: int
) -> RewardModelSettings:
    """A reward model on this hardware, next to a policy of its size.

    Raises ModelError, HardwareError or DoesNotFitError.
    """
    source = resolve_model(path, needs=ALL_PARTS)
    workload = shared_workload(
        ModelShape.from_folder(source.folder),
        ("actor", "reward"),
        data=DataConfig(max_prompt_length=max_prompt_length, max_response_length=max_response_length),
        algorithm=AlgorithmConfig(group_size=2),
    )
    return RewardModelSettings(model_folder=source.folder, role=make_plan(workload, hardware).roles["reward"])


def experience_settings(config: RunConfig) -> ExperienceSettings:
    return ExperienceSettings(algorithm=config.algorithm, off_policy=config.off_policy)


def optimizer_settings(run: RunConfig, lr: float, num_batches: int | None) -> OptimizerSettings:
    """Of a role that learns from `num_batches` batches; None for a constant rate."""
    steps_per_batch = optimizer_steps_per_batch(run)
    return OptimizerSettings(
        **{field.name: getattr(run.optimizer, field.name) for field in fields(StepConfig)},
        lr=lr,
        total_steps=None if num_batches is None else num_batches * steps_per_batch,
        steps_per_batch=None if num_batches is None else steps_per_batch,
    )


def lora_settings(config: ModelConfig) -> LoraSettings | None:
    if config.lora_rank == 0:
        return None
    return LoraSettings(
        rank=config.lora_rank, alpha=config.lora_alpha, dropout=config.lora_dropout, targets=config.lora_targets
    )


_OPTIONS: dict[str, tuple[str, str]] = {
    "algorithm": ("algorithm", "name"),
    "lr": ("optimizer", ""),
    "weight_decay": ("optimizer", "weight_decay"),
    "optimizer": ("optimizer", "name"),
    "lora_rank": ("model", "lora_rank"),
    "lora_alpha": ("model", "lora_alpha"),
    "chat_template": ("model", "chat_template"),
    "max_prompt_length": ("data", "max_prompt_length"),
    "max_new_tokens": ("data", "max_response_length"),
    "temperature": ("rollout", "temperature"),
    "stop_strings": ("rollout", "stop_strings"),
    "rollout": ("rollout", "engine"),
    "max_num_seqs": ("rollout", "max_num_seqs"),
    "num_epochs": ("algorithm", "num_epochs"),
    "policy_loss": ("algorithm", "policy_loss"),
    "clip_low": ("algorithm", "clip_low"),
    "clip_high": ("algorithm", "clip_high"),
    "clip_value": ("algorithm", "clip_value"),
    "entropy_coef": ("algorithm", "entropy_coef"),
    "kl_loss": ("algorithm", "kl_loss"),
    "kl_loss_coef": ("algorithm", "kl_loss_coef"),
    "batch_size": ("trainer", "batch_size"),
    "mini_batch_size": ("trainer", "mini_batch_size"),
}
"option of `from_pretrained` to section and field of the settings"


class RoleOptions:
    """The options of `from_pretrained`, by the names of the settings they stand for."""

    def __init__(self, *, path: str, **options: Any) -> None:
        for name in options:
            if name not in _OPTIONS:
                guess = nearest(name, _OPTIONS)
                raise ConfigError(
                    f"`{name}` is not an option of `from_pretrained`",
                    hint=f"did you mean `{guess}`?" if guess else f"options: {', '.join(_OPTIONS)}",
                )
        self._path = path
        self._options = options

    def on(self, pool: ResourcePool) -> Setup:
        """Check and plan them for the pool's device, with room for every role of PPO beside this one."""
        sections: dict[str, dict[str, Any]] = {"model": {"path": self._path}}
        for name, value in self._options.items():
            section, key = _OPTIONS[name]
            for field in [key] if key else ["actor_lr", "critic_lr"]:
                sections.setdefault(section, {})[field] = value
        given = {f"{section}.{key}": value for section, part in sections.items() for key, value in part.items()}
        for dotted, value in settings_by_algorithm(given).items():
            section, _, key = dotted.partition(".")
            sections.setdefault(section, {})[key] = value
        batch_size = sections.get("trainer", {}).get("batch_size", TrainerConfig().batch_size)
        sections.setdefault("trainer", {}).setdefault("mini_batch_size", batch_size)
        return prepare(_run_config(sections), pool.hardware, describe=_with_room_for_others)


def _with_room_for_others(config: RunConfig, shapes: Mapping[RoleName, ModelShape]) -> Workload:
    row = ALGORITHMS[config.algorithm.name]
    critics: tuple[RoleName, ...] = CRITIC_ROLES if row.needs_cost else ("critic",) if row.needs_critic else ()
    return shared_workload(
        shapes["actor"],
        ("actor", *critics, "reference"),
        data=config.data,
        algorithm=config.algorithm,
        model=config.model,
        trainer=config.trainer,
    )


def _run_config(sections: dict[str, dict[str, Any]]) -> RunConfig:
    classes = {
        "model": ModelConfig,
        "data": DataConfig,
        "algorithm": AlgorithmConfig,
        "rollout": RolloutConfig,
        "optimizer": OptimizerConfig,
        "trainer": TrainerConfig,
        "plan": PlanConfig,
    }
    return replace(RunConfig(), **{name: classes[name](**fields) for name, fields in sections.items()})


def optimizer_steps_per_batch(config: RunConfig) -> int:
    """Optimizer steps that one training step takes; given responses are passed over once."""
    passes = 1 if is_offline(config.algorithm.name) else config.algorithm.num_epochs
    return passes * (config.trainer.batch_size // config.trainer.mini_batch_size)
