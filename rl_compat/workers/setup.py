"""From what a user asks for to what each role's workers are built from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from rl_compat.algorithms.advantages.estimators import VTraceBounds
from rl_compat.algorithms.losses.policy import POLICY_LOSSES
from rl_compat.algorithms.losses.types import PolicyLossNumbers
from rl_compat.algorithms.off_policy.rejection_rules import parse_rejection_rules
from rl_compat.algorithms.table import ALGORITHMS, LOSS_READS, is_offline, policy_loss_of
from rl_compat.config.settings import settings_by_algorithm
from rl_compat.config.types import (
    AlgorithmConfig,
    DataConfig,
    ModelConfig,
    OffPolicyConfig,
    OptimizerConfig,
    PlanConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
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
from rl_compat.objectives.actor_critic import PolicyLossSettings, ValueLossSettings
from rl_compat.objectives.experience import ExperienceSettings
from rl_compat.objectives.off_policy import OffPolicySettings
from rl_compat.planning.fit import make_plan
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.speed.measurements import own_measurements
from rl_compat.planning.types import Plan
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.workers.actor import ActorSettings
from rl_compat.workers.critic import CriticSettings
from rl_compat.workers.reference import ReferenceSettings
from rl_compat.workers.reward_model import RewardModelSettings

WITHOUT_TOKENIZER: tuple[Part, ...] = ("config", "weights")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A request that was checked against files and hardware; no weights are loaded yet."""

    config: RunConfig
    hardware: Hardware
    source: ModelSource
    critic_source: ModelSource
    tokenizer: TokenizerBundle
    chat: ChatEncoder
    reward_source: ModelSource | None = None
    "of a reward model"
    cost_source: ModelSource | None = None
    "of a cost model"

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth knowing about the model and its tokenizer."""
        return (*self.source.notes, *self.tokenizer.notes, *self.chat.notes)

    @cached_property
    def shape(self) -> ModelShape:
        return ModelShape.from_folder(self.source.folder)

    @cached_property
    def critic_shape(self) -> ModelShape:
        return ModelShape.from_folder(self.critic_source.folder)

    @cached_property
    def reward_shape(self) -> ModelShape | None:
        return None if self.reward_source is None else ModelShape.from_folder(self.reward_source.folder)

    @cached_property
    def cost_shape(self) -> ModelShape | None:
        return None if self.cost_source is None else ModelShape.from_folder(self.cost_source.folder)

    @cached_property
    def plan(self) -> Plan:
        """The plan for this request on this hardware. Raises HardwareError or DoesNotFitError."""
        return make_plan(
            self.config,
            self.hardware,
            self.shape,
            critic_shape=self.critic_shape,
            reward_shape=self.reward_shape,
            cost_shape=self.cost_shape,
            measured=own_measurements(),
        )


def prepare(config: RunConfig, hardware: Hardware) -> Setup:
    """Find the model and its tokenizer. Raises ModelError."""
    model, needs_cost = config.model, ALGORITHMS[config.algorithm.name].needs_cost
    rewarded = not is_offline(config.algorithm.name)
    source = resolve_model(model.path, needs=WITHOUT_TOKENIZER if model.tokenizer else ALL_PARTS)
    tokenizer = load_tokenizer(
        tokenizer_folder(model, source.folder),
        model_folder=source.folder,
        trust_remote_code=model.trust_remote_code,
    )
    return Setup(
        config=config,
        hardware=hardware,
        source=source,
        critic_source=resolve_model(model.critic_path, needs=WITHOUT_TOKENIZER) if model.critic_path else source,
        tokenizer=tokenizer,
        chat=ChatEncoder(tokenizer, model.chat_template),
        reward_source=resolve_model(config.reward.model, needs=ALL_PARTS) if config.reward.model and rewarded else None,
        cost_source=resolve_model(config.cost.model, needs=ALL_PARTS) if config.cost.model and needs_cost else None,
    )


def tokenizer_folder(model: ModelConfig, model_folder: Path) -> Path:
    """The model's own folder unless another was asked for."""
    return resolve_model(model.tokenizer, needs=("tokenizer",)).folder if model.tokenizer else model_folder


def actor_settings(setup: Setup, *, total_optimizer_steps: int | None = None) -> ActorSettings:
    """`total_optimizer_steps` is what a learning-rate schedule runs over; None for a constant rate."""
    config, plan = setup.config, setup.plan
    algorithm = config.algorithm
    return ActorSettings(
        model_folder=setup.source.folder,
        role=plan.roles["actor"],
        rollout=plan.rollout,
        pad_token_id=setup.tokenizer.pad_token_id,
        num_valid_tokens=setup.tokenizer.num_tokens,
        optimizer=optimizer_settings(config.optimizer, config.optimizer.actor_lr, total_optimizer_steps),
        lora=lora_settings(config.model),
        loss=policy_loss_settings(config),
        off_policy=off_policy_settings(config.off_policy),
        temperature=config.rollout.temperature,
        stop_strings=config.rollout.stop_strings,
        decode=partial(setup.tokenizer.tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False),
        num_epochs=algorithm.num_epochs,
        mini_batch_size=config.trainer.mini_batch_size,
        trust_remote_code=config.model.trust_remote_code,
    )


def policy_loss_settings(config: RunConfig) -> PolicyLossSettings:
    algorithm = config.algorithm
    name = policy_loss_of(algorithm.name, algorithm.policy_loss)
    own = POLICY_LOSSES[name].aggregation
    return PolicyLossSettings(
        policy_loss=name,
        numbers=PolicyLossNumbers(
            **{key.replace(".", "_"): attrgetter(key)(algorithm) for reads in LOSS_READS.values() for key in reads}
        ),
        entropy_coef=algorithm.entropy_coef,
        kl_loss=algorithm.kl_loss,
        kl_loss_coef=algorithm.kl_loss_coef,
        loss_aggregation=own if algorithm.loss_aggregation == "auto" else algorithm.loss_aggregation,
        width=config.data.max_response_length,
    )


def critic_settings(setup: Setup, *, role: str = "critic", total_optimizer_steps: int | None = None) -> CriticSettings:
    """Of the critic, or with `role="cost_critic"` of that of the cost."""
    config = setup.config
    aggregation = config.algorithm.loss_aggregation
    return CriticSettings(
        model_folder=setup.critic_source.folder,
        role=setup.plan.roles[role],
        optimizer=optimizer_settings(config.optimizer, config.optimizer.critic_lr, total_optimizer_steps),
        lora=lora_settings(config.model),
        loss=ValueLossSettings(
            clip_value=config.algorithm.clip_value,
            loss_aggregation="token-mean" if aggregation == "auto" else aggregation,
            width=config.data.max_response_length,
        ),
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


def reward_model_settings(setup: Setup) -> RewardModelSettings | None:
    """None when the reward has no model."""
    return _learned(setup, setup.reward_source, "reward")


def cost_model_settings(setup: Setup) -> RewardModelSettings | None:
    """None when the cost has no model."""
    return _learned(setup, setup.cost_source, "cost")


def _learned(setup: Setup, source: ModelSource | None, role: str) -> RewardModelSettings | None:
    if source is None:
        return None
    return RewardModelSettings(
        model_folder=source.folder,
        role=setup.plan.roles[role],
        trust_remote_code=setup.config.model.trust_remote_code,
    )


def plan_reward_model(
    path: str, hardware: Hardware, *, max_prompt_length: int, max_response_length: int
) -> RewardModelSettings:
    """A reward model on this hardware, beside a policy of its size.

    Raises ModelError, HardwareError or DoesNotFitError.
    """
    source = resolve_model(path, needs=ALL_PARTS)
    shape = ModelShape.from_folder(source.folder)
    data = DataConfig(max_prompt_length=max_prompt_length, max_response_length=max_response_length)
    config = replace(RunConfig(), algorithm=AlgorithmConfig(name="grpo", group_size=2), data=data)
    plan = make_plan(config, hardware, shape, reward_shape=shape)
    return RewardModelSettings(model_folder=source.folder, role=plan.roles["reward"])


def experience_settings(config: RunConfig) -> ExperienceSettings:
    algorithm, off_policy = config.algorithm, config.off_policy
    return ExperienceSettings(
        algorithm=algorithm.name,
        gamma=algorithm.gamma,
        gae_lambda=algorithm.gae_lambda,
        whiten=algorithm.whiten_advantages,
        normalize_by_std=algorithm.normalize_by_std,
        kl_in_reward=algorithm.kl_in_reward,
        off_policy=off_policy_settings(off_policy),
        vtrace=VTraceBounds(rho=off_policy.vtrace.rho, c=off_policy.vtrace.c) if off_policy.vtrace.enabled else None,
    )


def off_policy_settings(config: OffPolicyConfig) -> OffPolicySettings:
    return OffPolicySettings(
        importance=config.importance,
        truncate=config.truncate,
        band=config.band,
        normalize=config.normalize,
        rules=parse_rejection_rules(config.reject),
        bypass=config.bypass,
    )


def optimizer_settings(config: OptimizerConfig, lr: float, total_steps: int | None) -> OptimizerSettings:
    return OptimizerSettings(
        name=config.name,
        lr=lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        schedule=config.schedule,
        warmup_steps=config.warmup_steps,
        min_lr_fraction=config.min_lr_fraction,
        total_steps=total_steps,
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
        sections.setdefault("algorithm", {}).setdefault("kl_in_reward", "k1")
        batch_size = sections.get("trainer", {}).get("batch_size", TrainerConfig().batch_size)
        sections.setdefault("trainer", {}).setdefault("mini_batch_size", batch_size)
        return prepare(_run_config(sections), pool.hardware)


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
