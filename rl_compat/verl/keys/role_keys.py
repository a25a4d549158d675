"""verl's keys of the roles: batches, losses, optimizers, models and memory; sampling and engine of the rollout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_compat.verl.keys import correction, meanings, policy
from rl_compat.verl.keys.rules import (
    DTYPES,
    Given,
    Outcome,
    Rule,
    inert,
    off,
    only,
    other_than,
    renamed,
    same,
    same_names,
    translated,
    under,
    unless_negative,
    where,
)

FP32 = "trained weights are always kept in fp32; `plan.compute_dtype` sets the dtype of products"
NO_REPLAY = "expert routing is not replayed"
ATTENTION = ("eager", "sdpa", "flash_attention_2")
SCHEDULES = ("constant", "linear", "cosine")
KL_LOSS = f"{meanings.ACTOR}.use_kl_loss"

COMMON: Mapping[str, Rule] = {
    "strategy": other_than(("fsdp", "fsdp2"), "one engine serves any number of devices"),
    "ulysses_sequence_parallel_size": other_than((1,), "a sequence is never split over devices"),
    **off("common"),
    **inert("common"),
}
"keys of a role that its engine has too"

ENGINE: Mapping[str, Rule] = {
    **COMMON,
    "param_offload": meanings.offload("plan.offload_idle_models"),
    "optimizer_offload": meanings.offload("plan.offload_optimizer"),
    "offload_policy": meanings.offload("plan.offload_idle_models", "plan.offload_optimizer"),
    "fsdp_size": meanings.fsdp_size,
    "model_dtype": other_than([name for name, dtype in DTYPES.items() if dtype == "fp32"], FP32),
    "dtype": renamed("plan.compute_dtype", DTYPES, reason="verl's FSDP engine itself ignores it"),
    "mixed_precision.param_dtype": renamed("plan.compute_dtype", DTYPES, reason="the compute dtype of training"),
    **inert("engine"),
}

OPTIM: Mapping[str, Rule] = {
    "lr_warmup_steps": meanings.warmup_steps,
    "lr_warmup_steps_ratio": meanings.warmup_ratio,
    **same_names("optimizer", "weight_decay", "betas"),
    "clip_grad": same("optimizer.max_grad_norm"),
    "lr_scheduler_type": same("optimizer.schedule"),
    "warmup_style": same("optimizer.schedule"),
    "min_lr_ratio": same("optimizer.min_lr_fraction"),
    "num_cycles": only((0.5,), "the cosine schedule is half a cycle"),
    "optimizer": renamed(
        "optimizer.name", {"AdamW": "adamw", "AdamW8bit": "adamw8bit"}, reason="the name here is in lower case"
    ),
    "override_optimizer_config.eps": same("optimizer.eps"),
    "override_optimizer_config.betas": same("optimizer.betas"),
    "override_optimizer_config.optimizer_cpu_offload": meanings.offload("plan.offload_optimizer"),
    "override_optimizer_config.*": other_than((False, None), "only `eps`, `betas` and offload are read"),
    **off("optim"),
    "lr_decay_style": renamed("optimizer.schedule", {name: name for name in SCHEDULES}, reason=""),
    "min_lr": only((0, None), "the schedule ends at 0", otherwise="give it as a fraction: `optim.min_lr_ratio`"),
    "lr_warmup_init": only((0, None), "the warm-up starts at 0"),
    "weight_decay_incr_style": only(("constant", None), "the weight decay is constant"),
    **inert("optim"),
}

MODEL: Mapping[str, Rule] = {
    "tokenizer_path": same("model.tokenizer"),
    **same_names("model", "trust_remote_code", "lora_rank", "lora_alpha"),
    "enable_gradient_checkpointing": same("plan.gradient_checkpointing"),
    "lora.rank": same("model.lora_rank"),
    "lora.alpha": same("model.lora_alpha"),
    "lora.dropout": same("model.lora_dropout"),
    "target_modules": same("model.lora_targets"),
    "override_config.attn_implementation": renamed("plan.attention", {name: name for name in ATTENTION}, reason=""),
    **dict.fromkeys(
        ("override_config.*dropout*", "override_config.*pdrop"),
        only((0,), "off", otherwise="dropout changes the log-probabilities between rollout and update"),
    ),
    "override_config.*": only((), "the model keeps its own configuration"),
    **off("model"),
    "torch_dtype": ENGINE["model_dtype"],
    **inert("model"),
}

CHECKPOINT: Mapping[str, Rule] = {
    **inert("checkpoint"),
}

BATCHES: Mapping[str, Rule] = {
    **{
        f"{phase}_{name}": rule
        for phase in ("ppo", "log_prob", "forward")
        for name, rule in {
            "micro_batch_size_per_gpu": meanings.micro_batch_size,
            "micro_batch_size": meanings.global_micro_batch_size,
            "max_token_len_per_gpu": meanings.token_budget,
        }.items()
    },
    **inert("batches"),
}

LEARNER: Mapping[str, Rule] = {
    **BATCHES,
    **COMMON,
    "ppo_mini_batch_size": same("trainer.mini_batch_size", reason="prompts"),
    "ppo_epochs": same("algorithm.num_epochs"),
    "grad_clip": meanings.grad_clip,
    "rollout_n": same("algorithm.group_size"),
    "loss_agg_mode": policy.loss_aggregation,
    "megatron.param_offload": ENGINE["param_offload"],
    "megatron.optimizer_offload": ENGINE["optimizer_offload"],
    "router_replay.mode": only(("disabled",), "off", otherwise=NO_REPLAY),
    **off("learner"),
    **inert("learner"),
}


def never_existed(key: str, value: Any, given: Given) -> Outcome:
    """A key of a widely copied command that no version of verl has had."""
    reason = "not a key of verl; treated as `actor.fsdp_config.param_offload`"
    return translated({"plan.offload_idle_models": value}, reason, warn=True)


ACTOR_ONLY: Mapping[str, Rule] = {
    "clip_ratio": policy.clip_ratio,
    "clip_ratio_low": policy.clip_ratio_low,
    "clip_ratio_high": same("algorithm.clip_high"),
    "clip_ratio_c": same("algorithm.clip_dual"),
    "entropy_coeff": same("algorithm.entropy_coef"),
    "use_kl_loss": policy.use_kl_loss,
    **{
        name: where(KL_LOSS, rule, otherwise=f"`use_kl_loss` is not true; add `{KL_LOSS}=true`", warn=True)
        for name, rule in {"kl_loss_type": policy.use_kl_loss, "kl_loss_coef": same("algorithm.kl_loss_coef")}.items()
    },
    "policy_loss.loss_mode": policy.loss_mode,
    "policy_loss.clip_cov_ratio": same("algorithm.clip_cov.fraction"),
    "policy_loss.clip_cov_lb": same("algorithm.clip_cov.low"),
    "policy_loss.clip_cov_ub": same("algorithm.clip_cov.high"),
    "policy_loss.kl_cov_ratio": same("algorithm.kl_cov.fraction"),
    "policy_loss.ppo_kl_coef": same("algorithm.kl_cov.coef"),
    "policy_loss.dro_beta": same("algorithm.dro.beta"),
    "tau_pos": same("algorithm.sapo.tau_positive"),
    "tau_neg": same("algorithm.sapo.tau_negative"),
    "tis_imp_ratio_cap": correction.ratio_cap,
    **inert("actor_only"),
}

CRITIC: Mapping[str, Rule] = {
    "enable": only((None, True), "`adv_estimator=gae` has a critic", otherwise="`adv_estimator=gae` needs a critic"),
    "cliprange_value": same("algorithm.clip_value"),
    "model.path": same("model.critic_path"),
    "optim.lr": same("optimizer.critic_lr"),
    **under("model.fsdp_config", ENGINE),
    **under("fsdp", ENGINE),
}

ROLES: Mapping[str, Rule] = {
    "actor_rollout_ref.fsdp_config.cpu_offload": never_existed,
    "actor_rollout_ref.fsdp_config.offload_params": never_existed,
    "actor_rollout_ref.hybrid_engine": only((True,), "actor and rollout share the device"),
    "actor_rollout_ref.model.path": same("model.path"),
    "actor_rollout_ref.actor.optim.lr": same("optimizer.actor_lr"),
    **under("actor_rollout_ref.actor", LEARNER, ACTOR_ONLY),
    **under("actor_rollout_ref.actor.fsdp_config", ENGINE),
    **under("actor_rollout_ref.ref", LEARNER),
    **under("actor_rollout_ref.ref.fsdp_config", ENGINE),
    **off("roles"),
    **inert("roles"),
    **under("critic", LEARNER, CRITIC),
    **{
        f"{role}.{name}": rule
        for role in ("actor_rollout_ref", "critic")
        for name, rule in under("model", MODEL).items()
    },
    **{
        f"{role}.{name}": rule
        for role in ("actor_rollout_ref.actor", "critic")
        for name, rule in {**under("optim", OPTIM), **under("checkpoint", CHECKPOINT)}.items()
    },
}
"""Full key, or pattern with `*`, to rule."""

SPLIT = ("data_parallel_size", "expert_parallel_size", "pipeline_model_parallel_size")

ROLLOUT: Mapping[str, Rule] = {
    **BATCHES,
    **same_names("rollout", "temperature", "top_p", "seed", "gpu_memory_utilization"),
    **same_names("rollout", "max_num_batched_tokens", "max_num_seqs", "max_model_len"),
    "name": meanings.rollout_engine,
    "n": same("algorithm.group_size"),
    "top_k": unless_negative("rollout.top_k", 0, "all tokens"),
    "do_sample": only((True,), "responses are always sampled", otherwise="training needs sampled responses"),
    "prompt_length": same("data.max_prompt_length"),
    "response_length": same("data.max_response_length"),
    "dtype": renamed("plan.rollout_dtype", DTYPES, reason="the name here is shorter"),
    "ignore_eos": only((False,), "responses end at the end token"),
    "nnodes": only((0,), "generation and training use the same devices"),
    "disable_logprobs": other_than((), "not a key of verl; the log-probability of each token is always recorded"),
    "val_kwargs.temperature": meanings.validation_temperature,
    "val_kwargs.do_sample": meanings.validation_sampling,
    "val_kwargs.n": other_than((1,), "validation generates one response per prompt"),
    "val_kwargs.top_k": other_than((-1, 0), "validation samples from all tokens"),
    "val_kwargs.top_p": other_than((1,), "validation samples from all tokens"),
    "engine_kwargs*": other_than((None, {}, False), "the plan sets vLLM's options"),
    "tensor_model_parallel_size": same("rollout.tensor_parallel"),
    **dict.fromkeys(SPLIT, other_than((1,), "only the tensors of a layer are divided over devices")),
    **off("rollout"),
    **inert("rollout"),
}
"name below `actor_rollout_ref.rollout`, or pattern with `*`, to rule"
