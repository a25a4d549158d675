"""verl's keys of the actor, the reference and the critic: batches, losses, optimizers, models, memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_compat.verl.keys import correction, policy, role_meanings
from rl_compat.verl.keys.rules import Given, Outcome, Rule, inert, only, other_than, renamed, same, translated

SHARDING = inert("one device holds whole tensors")
PACKED = inert("padding is trimmed from every micro-batch")
CHUNKED = inert("log-probabilities and entropy are always computed in chunks")
NOT_COMPILED = inert("nothing is compiled")
PROFILER = inert("this profiler is not supported; the metrics contain the time and memory of each phase")

ENGINE: Mapping[str, Rule] = {
    "param_offload": role_meanings.offload("plan.offload_idle_models"),
    "optimizer_offload": role_meanings.offload("plan.offload_optimizer"),
    "offload_policy": role_meanings.offload("plan.offload_idle_models", "plan.offload_optimizer"),
    "grad_offload": inert("gradients live only inside an update"),
    "model_dtype": role_meanings.storage_dtype,
    "dtype": role_meanings.compute_dtype("verl's FSDP engine itself ignores it"),
    "mixed_precision.param_dtype": role_meanings.compute_dtype("the compute dtype of training"),
    "mixed_precision.reduce_dtype": inert("one device has nothing to reduce"),
    "mixed_precision.buffer_dtype": inert("buffers keep their own dtype"),
    "strategy": other_than(("fsdp", "fsdp2"), "one engine serves any number of devices"),
    "ulysses_sequence_parallel_size": other_than((1,), "a sequence is never split over devices"),
    "use_torch_compile": NOT_COMPILED,
    "entropy_from_logits_with_chunking": CHUNKED,
    "entropy_from_logits_chunk_size": CHUNKED,
    "entropy_checkpointing": CHUNKED,
    "pad_to_length": PACKED,
    "pad_to_length_bucket": PACKED,
    "forward_only": inert("a role that is not trained has no gradients"),
    "seed": inert("`trainer.seed` seeds the run"),
    "full_determinism": inert("`trainer.seed` seeds the run; kernels are not changed"),
    "qat.enable": only((False,), "off", otherwise="quantization-aware training is not supported"),
    "qat.*": inert("quantization-aware training is not supported"),
    "turbo_config.*": inert("only the strategy `fsdp_turbo` reads it"),
    "wrap_policy.*": SHARDING,
    "reshard_after_forward": SHARDING,
    "fsdp_size": SHARDING,
    "forward_prefetch": SHARDING,
    "use_orig_params": SHARDING,
}

OPTIM: Mapping[str, Rule] = {
    "lr_warmup_steps": role_meanings.warmup_steps,
    "lr_warmup_steps_ratio": role_meanings.warmup_ratio,
    "weight_decay": same("optimizer.weight_decay"),
    "betas": same("optimizer.betas"),
    "clip_grad": same("optimizer.max_grad_norm"),
    "lr_scheduler_type": same("optimizer.schedule"),
    "warmup_style": same("optimizer.schedule"),
    "min_lr_ratio": same("optimizer.min_lr_fraction"),
    "num_cycles": only((0.5,), "the cosine schedule is half a cycle", otherwise="the cosine schedule is half a cycle"),
    "optimizer": renamed(
        "optimizer.name", {"AdamW": "adamw", "AdamW8bit": "adamw8bit"}, reason="the name here is in lower case"
    ),
    "optimizer_impl": inert("`optimizer.name` selects the implementation"),
    "total_training_steps": inert("the schedule follows the length of the run"),
    "zero_indexed_step": inert("the schedule counts from zero"),
    "override_optimizer_config": only(
        (None, {}), "nothing to override", otherwise="set `optimizer.betas` and `optimizer.eps`"
    ),
    "override_optimizer_config.eps": same("optimizer.eps"),
    "override_optimizer_config.betas": same("optimizer.betas"),
    "override_optimizer_config.optimizer_cpu_offload": role_meanings.offload("plan.offload_optimizer"),
    "override_optimizer_config.*": other_than((False, None), "only `eps`, `betas` and offload are read"),
}

MODEL: Mapping[str, Rule] = {
    "tokenizer_path": same("model.tokenizer"),
    "hf_config_path": only((None,), "the model's own", otherwise="the configuration is read from the model's folder"),
    "trust_remote_code": same("model.trust_remote_code"),
    "custom_chat_template": only(
        (None,), "the tokenizer's own", otherwise="put the template in a file and set `model.chat_template=FILE`"
    ),
    "external_lib": only((None,), "nothing to import", otherwise="models are those of transformers"),
    "override_config": only(({}, None), "nothing to override", otherwise="give its entries as separate keys"),
    "override_config.attn_implementation": role_meanings.attention,
    "override_config.*dropout*": only(
        (0,), "dropout is off", otherwise="dropout changes the log-probabilities between rollout and update"
    ),
    "override_config.*": only((), "the model keeps its own configuration"),
    "override_config.*pdrop": only(
        (0,), "dropout is off", otherwise="dropout changes the log-probabilities between rollout and update"
    ),
    "enable_gradient_checkpointing": same("plan.gradient_checkpointing"),
    "enable_activation_offload": inert("activations are recomputed instead: `plan.gradient_checkpointing`"),
    "use_remove_padding": PACKED,
    "use_liger": inert("no fused kernels: log-probabilities are computed in chunks"),
    "use_fused_kernels": inert("no fused kernels: log-probabilities are computed in chunks"),
    "fused_kernel_options.*": inert("no fused kernels"),
    "use_shm": inert("files are read once"),
    "lora_rank": same("model.lora_rank"),
    "lora_alpha": same("model.lora_alpha"),
    "lora.rank": same("model.lora_rank"),
    "lora.alpha": same("model.lora_alpha"),
    "lora.dropout": same("model.lora_dropout"),
    "target_modules": role_meanings.targets,
    "exclude_modules": only(
        (None, []), "nothing to exclude", otherwise="list the modules with adapters in `model.lora_targets`"
    ),
    "lora_adapter_path": only(
        (None,), "adapters start at zero", otherwise="adapters start at zero; merge the old ones first"
    ),
    "tiled_mlp.enabled": only(
        (False,), "off", otherwise="tiled MLPs are not supported; use `plan.gradient_checkpointing`"
    ),
    "tiled_mlp.num_shards": inert("tiled MLPs are not supported"),
    "lora.merge": inert("the rollout shares the trained weights"),
    "lora.*": inert("only Megatron reads it"),
    "mtp.enable*": only((False,), "off", otherwise="multi-token prediction is not supported"),
    "mtp.*": inert("multi-token prediction is not supported"),
}

CHECKPOINT: Mapping[str, Rule] = {
    "save_contents": inert("checkpoints are always whole; `rlc export` writes a Hugging Face folder"),
    "load_contents": inert("checkpoints are always whole"),
    "contents": inert("checkpoints are always whole"),
    "async_save": inert("checkpoints are written before the next step"),
    "strict": inert("a checkpoint must match the model"),
    "mbridge_config": inert("only Megatron reads it"),
}

BATCHES: Mapping[str, Rule] = {
    "ppo_micro_batch_size_per_gpu": role_meanings.micro_batch_size,
    "ppo_micro_batch_size": role_meanings.global_micro_batch_size,
    "log_prob_micro_batch_size_per_gpu": role_meanings.micro_batch_size,
    "log_prob_micro_batch_size": role_meanings.global_micro_batch_size,
    "forward_micro_batch_size_per_gpu": role_meanings.micro_batch_size,
    "forward_micro_batch_size": role_meanings.global_micro_batch_size,
    "ppo_max_token_len_per_gpu": role_meanings.token_budget,
    "log_prob_max_token_len_per_gpu": role_meanings.token_budget,
    "forward_max_token_len_per_gpu": role_meanings.token_budget,
    "use_dynamic_bsz": role_meanings.dynamic_batches,
    "log_prob_use_dynamic_bsz": role_meanings.dynamic_batches,
}

LEARNER: Mapping[str, Rule] = {
    **BATCHES,
    "ppo_mini_batch_size": same("trainer.mini_batch_size", reason="prompts"),
    "ppo_epochs": same("algorithm.num_epochs"),
    "grad_clip": role_meanings.grad_clip,
    "strategy": ENGINE["strategy"],
    "rollout_n": same("algorithm.group_size"),
    "shuffle": inert("mini-batches are always drawn in a shuffled order"),
    "data_loader_seed": inert("`trainer.seed` seeds the order of mini-batches"),
    "loss_agg_mode": policy.loss_aggregation,
    "loss_scale_factor": only((None,), "the padded width", otherwise="the divisor is the padded width"),
    "ulysses_sequence_parallel_size": ENGINE["ulysses_sequence_parallel_size"],
    "use_torch_compile": NOT_COMPILED,
    "use_remove_padding": PACKED,
    "use_fused_kernels": MODEL["use_fused_kernels"],
    "use_prefix_grouper": inert("each sequence has its own forward pass pass"),
    "pad_to_length": PACKED,
    "entropy_from_logits_with_chunking": CHUNKED,
    "entropy_from_logits_chunk_size": CHUNKED,
    "entropy_checkpointing": CHUNKED,
    "sum_pi_squared_checkpointing": CHUNKED,
    "qat.enable": ENGINE["qat.enable"],
    "qat.*": ENGINE["qat.*"],
    "router_replay.mode": only(("disabled",), "off", otherwise="expert routing is not replayed"),
    "router_replay.*": inert("expert routing is not replayed"),
    "megatron.param_offload": ENGINE["param_offload"],
    "megatron.optimizer_offload": ENGINE["optimizer_offload"],
    "megatron.*": inert(
        "it configures how Megatron splits, fuses or saves; the training engine here has no such options"
    ),
    "engine.*": inert("it configures how an engine splits or fuses; the training engine here has no such options"),
    "veomni.*": inert("it configures how VeOmni splits or fuses; the training engine here has no such options"),
    "torchtitan.*": inert("it configures how TorchTitan splits or fuses; the training engine here has no such options"),
    "profiler.*": PROFILER,
}


def never_existed(key: str, value: Any, given: Given) -> Outcome:
    """A key of a widely copied command that no version of verl has had."""
    reason = "not a key of verl; treated as `actor.fsdp_config.param_offload`"
    return translated({"plan.offload_idle_models": value}, reason, warn=True)


def _under(prefix: str, *tables: Mapping[str, Rule]) -> dict[str, Rule]:
    return {f"{prefix}.{name}": rule for table in tables for name, rule in table.items()}


ACTOR_ONLY: Mapping[str, Rule] = {
    "clip_ratio": policy.clip_ratio,
    "clip_ratio_low": policy.clip_ratio_low,
    "clip_ratio_high": same("algorithm.clip_high"),
    "clip_ratio_c": same("algorithm.clip_dual"),
    "entropy_coeff": same("algorithm.entropy_coef"),
    "calculate_entropy": inert("entropy is always in the metrics"),
    "calculate_sum_pi_squared": inert("the estimators that need it ask for it"),
    "use_kl_loss": policy.use_kl_loss,
    "kl_loss_type": policy.kl_loss_type,
    "kl_loss_coef": policy.kl_loss_coef,
    "policy_loss.loss_mode": policy.loss_mode,
    "policy_loss.clip_cov_ratio": same("algorithm.clip_cov.fraction"),
    "policy_loss.clip_cov_lb": same("algorithm.clip_cov.low"),
    "policy_loss.clip_cov_ub": same("algorithm.clip_cov.high"),
    "policy_loss.kl_cov_ratio": same("algorithm.kl_cov.fraction"),
    "policy_loss.ppo_kl_coef": same("algorithm.kl_cov.coef"),
    "policy_loss.dro_beta": same("algorithm.dro.beta"),
    "policy_loss.*": inert("no policy loss reads it"),
    "tau_pos": same("algorithm.sapo.tau_positive"),
    "tau_neg": same("algorithm.sapo.tau_negative"),
    "freeze_vision_tower": inert("models are text only"),
    "tis_imp_ratio_cap": correction.ratio_cap,
}

ROLES: Mapping[str, Rule] = {
    "actor_rollout_ref.fsdp_config.cpu_offload": never_existed,
    "actor_rollout_ref.fsdp_config.offload_params": never_existed,
    "actor_rollout_ref.hybrid_engine": only((True,), "actor and rollout share the device"),
    "actor_rollout_ref.nccl_timeout": inert("one device has no collectives"),
    **_under("actor_rollout_ref.model", MODEL),
    **_under("actor_rollout_ref.actor", LEARNER, ACTOR_ONLY),
    **_under("actor_rollout_ref.actor.optim", {"lr": same("optimizer.actor_lr")}, OPTIM),
    **_under("actor_rollout_ref.actor.fsdp_config", ENGINE),
    **_under("actor_rollout_ref.actor.checkpoint", CHECKPOINT),
    **_under("actor_rollout_ref.ref", LEARNER),
    "actor_rollout_ref.ref.model": only(
        (None,), "the actor before training", otherwise="the reference is the actor before training"
    ),
    **_under("actor_rollout_ref.ref.fsdp_config", ENGINE),
    "critic.enable": only(
        (None, True), "`adv_estimator=gae` has a critic", otherwise="`adv_estimator=gae` needs a critic"
    ),
    **_under("critic", LEARNER, {"cliprange_value": same("algorithm.clip_value")}),
    "critic.model.path": same("model.critic_path"),
    "actor_rollout_ref.model.path": same("model.path"),
    **_under("critic.model", MODEL),
    **_under("critic.optim", {"lr": same("optimizer.critic_lr")}, OPTIM),
    **_under("critic.fsdp", ENGINE),
    **_under("critic.model.fsdp_config", ENGINE),
    **_under("critic.checkpoint", CHECKPOINT),
}
"""Full key, or pattern with `*`, to rule."""
