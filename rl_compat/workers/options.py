"""The options of the role models. Each stands for a setting, whose dotted key is in its type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from rl_compat.algorithms.table import Aggregation, AlgorithmName, KLKind, PolicyLossName
from rl_compat.config.options import option_keys, values_of_options
from rl_compat.config.types import OptimizerName


class ModelOptions(TypedDict, total=False):
    """Options of every model. In a session, those that are not given follow the actor's."""

    max_prompt_length: Annotated[int, "data.max_prompt_length"]
    max_new_tokens: Annotated[int, "data.max_response_length"]
    trust_remote_code: Annotated[bool, "model.trust_remote_code"]


class TrainedOptions(ModelOptions, total=False):
    """Options of every model that learns. In a session, those that are not given follow the actor's."""

    optimizer: Annotated[OptimizerName, "optimizer.name"]
    weight_decay: Annotated[float, "optimizer.weight_decay"]
    max_grad_norm: Annotated[float, "optimizer.max_grad_norm"]
    lora_rank: Annotated[int, "model.lora_rank"]
    lora_alpha: Annotated[float, "model.lora_alpha"]
    lora_targets: Annotated[Sequence[str], "model.lora_targets"]
    num_epochs: Annotated[int, "algorithm.num_epochs"]
    batch_size: Annotated[int, "trainer.batch_size"]
    mini_batch_size: Annotated[int, "trainer.mini_batch_size"]
    loss_aggregation: Annotated[Aggregation | Literal["auto"], "algorithm.loss_aggregation"]


class ActorOptions(TrainedOptions, total=False):
    """Options of `ActorModel`."""

    lr: Annotated[float, "optimizer.actor_lr"]
    chat_template: Annotated[str | None, "model.chat_template"]
    temperature: Annotated[float, "rollout.temperature"]
    stop_strings: Annotated[Sequence[str], "rollout.stop_strings"]
    rollout: Annotated[Literal["auto", "native", "transformers", "vllm"], "rollout.engine"]
    max_num_seqs: Annotated[int | None, "rollout.max_num_seqs"]
    algorithm: Annotated[AlgorithmName, "algorithm.name"]
    policy_loss: Annotated[PolicyLossName | Literal["auto"], "algorithm.policy_loss"]
    clip_low: Annotated[float, "algorithm.clip_low"]
    clip_high: Annotated[float, "algorithm.clip_high"]
    clip_dual: Annotated[float | None, "algorithm.clip_dual"]
    entropy_coef: Annotated[float, "algorithm.entropy_coef"]
    kl_loss: Annotated[KLKind | Literal["none"], "algorithm.kl_loss"]
    kl_loss_coef: Annotated[float, "algorithm.kl_loss_coef"]


class CriticOptions(TrainedOptions, total=False):
    """Options of `CriticModel`."""

    lr: Annotated[float, "optimizer.critic_lr"]
    clip_value: Annotated[float | None, "algorithm.clip_value"]


class ReferenceOptions(ModelOptions, total=False):
    """Options of `ReferenceModel`."""

    temperature: Annotated[float, "rollout.temperature"]


class FunctionOptions(TypedDict, total=False):
    """Options of reward functions."""

    weights: Annotated[Sequence[float], "reward.weights"]
    function_arguments: Annotated[Mapping[str, Any], "reward.function_arguments"]
    overlong_buffer: Annotated[int, "reward.overlong_buffer"]
    overlong_penalty: Annotated[float, "reward.overlong_penalty"]
    max_new_tokens: Annotated[int, "data.max_response_length"]
    num_processes: Annotated[int, "reward.num_processes"]
    timeout_seconds: Annotated[float, "reward.timeout_seconds"]
    on_error: Annotated[Literal["stop", "zero", "skip"], "reward.on_error"]


class RewardOptions(FunctionOptions, total=False):
    """Options of `RewardModel` with a model, which is planned for these lengths."""

    model_weight: Annotated[float, "reward.model_weight"]
    max_prompt_length: Annotated[int, "data.max_prompt_length"]
    trust_remote_code: Annotated[bool, "model.trust_remote_code"]


OPTIONS: Mapping[str, type] = {
    "ActorModel": ActorOptions,
    "CriticModel": CriticOptions,
    "ReferenceModel": ReferenceOptions,
    "RewardModel": RewardOptions,
    "RewardModel.from_functions": FunctionOptions,
}
"by class or call"


def role_values(owner: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the options of a role model stand for, by dotted key. Raises ConfigError."""
    others = {name: option_keys(options) for name, options in OPTIONS.items()}
    return values_of_options(given, option_keys(OPTIONS[owner]), owner=owner, others=others)
