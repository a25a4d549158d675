"""Every key of verl's that is known here, with its rule."""

from __future__ import annotations

from collections.abc import Mapping

from rl_compat.config.verl_meanings import (
    critic_warmup,
    custom_reward,
    estimator,
    filter_overlong,
    interval,
    kl_control,
    kl_penalty,
    loggers,
    num_devices,
    resume_mode,
    resume_path,
    reward_argument,
    rollout_engine,
    sample_limit,
    top_k,
    truncation,
    use_kl_in_reward,
    validation_sampling,
    validation_temperature,
)
from rl_compat.config.verl_role_keys import BATCHES, PROFILER, ROLES
from rl_compat.config.verl_rules import DTYPES, Rule, inert, only, renamed, same

TEXT_ONLY = inert("models are text only")
OF_VLLM = inert("the rollout engine decides it from the plan")
ONE_DEVICE = "every tensor is whole on one device"
NO_RAY = inert("one device runs in this process, without Ray")
NO_REWARD_SERVER = "no reward model is served; score with `reward.functions`"
NO_SANDBOX = "no code sandbox is called; score with `reward.functions`"
NO_TOOLS = "rollouts are single turns without tools"
NO_CORRECTION = "there is no importance correction of the rollout"
NO_FILTER_GROUPS = "groups are not filtered and drawn again"

DATA: Mapping[str, Rule] = {
    "data.train_files": same("data.train_files"),
    "data.val_files": same("data.val_files"),
    "data.prompt_key": same("data.prompt_key"),
    "data.max_prompt_length": same("data.max_prompt_length"),
    "data.max_response_length": same("data.max_response_length"),
    "data.shuffle": same("data.shuffle"),
    "data.seed": same("data.seed"),
    "data.tokenizer": same("model.tokenizer"),
    "data.train_batch_size": same("trainer.batch_size", reason="prompts"),
    "data.gen_batch_size": inert("prompts are drawn for one step at a time"),
    "data.val_batch_size": inert("validation runs through the rollout engine, which batches by itself"),
    "data.train_max_samples": sample_limit("data.max_train_samples"),
    "data.val_max_samples": sample_limit("data.max_val_samples"),
    "data.reward_fn_key": only(
        ("data_source", None),
        "the scorer is picked by `data_source`",
        otherwise="the scorer is picked by `data_source`",
    ),
    "data.filter_overlong_prompts": filter_overlong,
    "data.filter_overlong_prompts_workers": inert("this process filters"),
    "data.truncation": truncation,
    "data.trust_remote_code": same("model.trust_remote_code"),
    "data.return_raw_input_ids": inert("token ids are always kept"),
    "data.return_raw_chat": inert("the chat is always kept"),
    "data.return_full_prompt": inert("the prompt is always kept"),
    "data.return_multi_modal_inputs": TEXT_ONLY,
    "data.dataloader_num_workers": inert("rows are in memory"),
    "data.use_shm": inert("rows are in memory"),
    "data.validation_shuffle": inert("the order does not change the accuracy"),
    "data.image_key": TEXT_ONLY,
    "data.video_key": TEXT_ONLY,
    "data.audio_key": TEXT_ONLY,
    "data.image_patch_size": TEXT_ONLY,
    "data.mm_processor_kwargs*": TEXT_ONLY,
    "data.custom_cls.*": only(
        (None,), "no class of its own", otherwise="there is no dataset class; write parquet or JSON lines"
    ),
    "data.sampler.*": only(
        (None,), "no sampler of its own", otherwise="rows are drawn in order or shuffled by `data.seed`"
    ),
    "data.datagen.*": only((None,), "no data generation", otherwise="there is no data generation"),
    "data.continuous_token.enable": only((False,), "off", otherwise="single turns have nothing to continue"),
    "data.continuous_token.*": inert("single turns have nothing to continue"),
    "data.tool_config_path": only((None,), "no tools", otherwise=NO_TOOLS),
    "data.function_tool_path": only((None,), "no tools", otherwise=NO_TOOLS),
    "data.apply_chat_template_kwargs": only(
        ({}, None), "none given", otherwise="put the template in a file and set `model.chat_template=FILE`"
    ),
    "data.apply_chat_template_kwargs.*": only(
        (), "", otherwise="put the template in a file and set `model.chat_template=FILE`"
    ),
}

_ROLLOUT: Mapping[str, Rule] = {
    **BATCHES,
    "name": rollout_engine,
    "mode": inert("generation takes turns with training"),
    "n": same("algorithm.group_size"),
    "temperature": same("rollout.temperature"),
    "top_p": same("rollout.top_p"),
    "top_k": top_k,
    "do_sample": only((True,), "responses are always sampled", otherwise="training needs sampled responses"),
    "seed": same("rollout.seed"),
    "prompt_length": same("data.max_prompt_length"),
    "response_length": same("data.max_response_length"),
    "dtype": renamed("plan.rollout_dtype", DTYPES, reason="the name here is shorter"),
    "gpu_memory_utilization": same("rollout.gpu_memory_utilization"),
    "max_num_batched_tokens": same("rollout.max_num_batched_tokens"),
    "max_num_seqs": same("rollout.max_num_seqs"),
    "max_model_len": inert("the longest sequence is prompt plus response"),
    "ignore_eos": only((False,), "responses end at the end token", otherwise="responses end at the end token"),
    "tensor_model_parallel_size": only((1,), ONE_DEVICE, otherwise=f"{ONE_DEVICE}; set it to 1"),
    "data_parallel_size": only((1,), ONE_DEVICE, otherwise=f"{ONE_DEVICE}; set it to 1"),
    "expert_parallel_size": only((1,), ONE_DEVICE, otherwise=f"{ONE_DEVICE}; set it to 1"),
    "pipeline_model_parallel_size": only((1,), ONE_DEVICE, otherwise=f"{ONE_DEVICE}; set it to 1"),
    "nnodes": only((0,), "generation is where training is", otherwise="generation is where training is"),
    "n_gpus_per_node": inert("generation is where training is"),
    "enforce_eager": OF_VLLM,
    "cudagraph_capture_sizes": OF_VLLM,
    "free_cache_engine": OF_VLLM,
    "enable_chunked_prefill": OF_VLLM,
    "enable_prefix_caching": OF_VLLM,
    "scheduling_policy": OF_VLLM,
    "skip_tokenizer_init": OF_VLLM,
    "multi_stage_wake_up": OF_VLLM,
    "engine_kwargs*": OF_VLLM,
    "load_format": inert("the rollout has the trained weights from the start"),
    "layered_summon": inert("the rollout has the trained weights from the start"),
    "checkpoint_engine.*": inert("the rollout shares the trained weights"),
    "update_weights_bucket_megabytes": inert("the rollout shares the trained weights"),
    "logprobs_mode": inert("log-probabilities are those of the distribution that was sampled"),
    "calculate_log_probs": inert("the log-probability of each sampled token is always recorded"),
    "disable_logprobs": inert(
        "never one of verl's keys; the log-probability of each sampled token is always recorded, at no cost", warn=True
    ),
    "over_sample_rate": inert("as many responses are generated as are used"),
    "use_fire_sampling": only((False,), "off", otherwise="there is no such sampling"),
    "quantization": only((None,), "off", otherwise="rollout weights are not quantized"),
    "quantization_config_file": only((None,), "off", otherwise="rollout weights are not quantized"),
    "val_kwargs.temperature": validation_temperature,
    "val_kwargs.do_sample": validation_sampling,
    "val_kwargs.n": only((1,), "one response per question", otherwise="validation takes one response per question"),
    "val_kwargs.top_k": only((-1,), "all tokens", otherwise="validation samples from all tokens"),
    "val_kwargs.top_p": only((1,), "all tokens", otherwise="validation samples from all tokens"),
    "disable_log_stats": OF_VLLM,
    "full_determinism": inert("`trainer.seed` seeds the run; the kernels stay as they are"),
    "mtp*": inert("there is no multi-token prediction"),
    "qat*": inert("there is no quantization-aware training"),
    "enable_rollout_routing_replay": only((False,), "off", otherwise="expert routing is not replayed"),
    "moe_load_balance_metrics_interval": inert("experts are not measured"),
    "disaggregation.enabled": only((False,), "off", otherwise="prefill and decoding share the device"),
    "disaggregation.*": inert("prefill and decoding share the device"),
    "multi_turn.enable": only((False,), "single turns", otherwise=NO_TOOLS),
    "multi_turn.*": inert(NO_TOOLS),
    "agent.*": inert(NO_TOOLS),
    "trace.*": inert("samples.jsonl has the responses"),
    "prometheus.*": inert("metrics go to `trainer.loggers`"),
    "skip.enable": only((False,), "every step generates", otherwise="every step generates"),
    "skip_rollout": only((False,), "every step generates", otherwise="every step generates"),
    "skip*": inert("every step generates"),
    "profiler.*": PROFILER,
}

ALGORITHM: Mapping[str, Rule] = {
    "algorithm.adv_estimator": estimator,
    "algorithm.gamma": same("algorithm.gamma"),
    "algorithm.lam": same("algorithm.gae_lambda"),
    "algorithm.norm_adv_by_std_in_grpo": same("algorithm.normalize_by_std"),
    "algorithm.use_kl_in_reward": use_kl_in_reward,
    "algorithm.kl_penalty": kl_penalty,
    "algorithm.kl_ctrl.type": kl_control("algorithm.kl_controller"),
    "algorithm.kl_ctrl.kl_coef": kl_control("algorithm.kl_coef"),
    "algorithm.kl_ctrl.horizon": kl_control("algorithm.kl_horizon"),
    "algorithm.kl_ctrl.target_kl": kl_control("algorithm.kl_target"),
    "algorithm.filter_groups.enable": only((False,), "off", otherwise=NO_FILTER_GROUPS),
    "algorithm.filter_groups.*": inert(NO_FILTER_GROUPS),
    "algorithm.use_pf_ppo": only((False,), "off", otherwise="the batch is not resampled"),
    "algorithm.pf_ppo.*": inert("the batch is not resampled"),
    "algorithm.rollout_correction.rollout_is": only((None,), "off", otherwise=NO_CORRECTION),
    "algorithm.rollout_correction.rollout_rs": only((None,), "off", otherwise=NO_CORRECTION),
    "algorithm.rollout_correction.bypass_mode": only((False,), "off", otherwise=NO_CORRECTION),
    "algorithm.rollout_correction.*": inert(NO_CORRECTION),
}

REWARD: Mapping[str, Rule] = {
    "reward.custom_reward_function.path": custom_reward("reward.custom_reward_function"),
    "reward.custom_reward_function.name": custom_reward("reward.custom_reward_function"),
    "reward.custom_reward_function.reward_kwargs": reward_argument,
    "reward.custom_reward_function.reward_kwargs.*": reward_argument,
    "custom_reward_function.path": custom_reward("custom_reward_function"),
    "custom_reward_function.name": custom_reward("custom_reward_function"),
    "custom_reward_function.reward_kwargs": reward_argument,
    "custom_reward_function.reward_kwargs.*": reward_argument,
    "reward.num_workers": inert("this process scores"),
    "reward.reward_manager.name": only(("naive",), "every response is scored", otherwise="only `naive` exists here"),
    "reward.reward_manager.source": only(
        ("register",), "built in", otherwise="use `reward.functions=file.py:function`"
    ),
    "reward.reward_manager.module.*": inert("use `reward.functions=file.py:function`"),
    "reward.reward_model.enable": only((False,), "off", otherwise=NO_REWARD_SERVER),
    "reward.reward_model.*": inert(NO_REWARD_SERVER),
    "reward.sandbox_fusion.url": only((None,), "off", otherwise=NO_SANDBOX),
    "reward.sandbox_fusion.*": inert(NO_SANDBOX),
    "reward_model.enable": only((False, None), "off", otherwise=NO_REWARD_SERVER),
    "reward_model.reward_manager": only(
        ("naive", None), "every response is scored", otherwise="only `naive` exists here"
    ),
    "reward_model.*": inert(NO_REWARD_SERVER),
    "reward_manager.name": only(("naive",), "every response is scored", otherwise="only `naive` exists here"),
    "reward_manager.*": inert("use `reward.functions=file.py:function`"),
    "sandbox_fusion.url": only((None,), "off", otherwise=NO_SANDBOX),
    "sandbox_fusion.*": inert(NO_SANDBOX),
}

TRAINER: Mapping[str, Rule] = {
    "trainer.total_epochs": same("trainer.num_epochs"),
    "trainer.total_training_steps": same("trainer.num_steps"),
    "trainer.project_name": same("trainer.project"),
    "trainer.experiment_name": same("trainer.experiment"),
    "trainer.logger": loggers,
    "trainer.log_val_generations": inert("samples.jsonl has `trainer.num_sample_generations` responses of each step"),
    "trainer.rollout_data_dir": inert("samples.jsonl in `trainer.output_dir` has the responses"),
    "trainer.validation_data_dir": inert("samples.jsonl in `trainer.output_dir` has the responses"),
    "trainer.n_gpus_per_node": num_devices,
    "trainer.nnodes": num_devices,
    "trainer.save_freq": interval("trainer.save_every"),
    "trainer.test_freq": interval("trainer.validate_every"),
    "trainer.val_before_train": same("trainer.validate_before"),
    "trainer.val_only": only((False,), "off", otherwise="use `rlc eval`"),
    "trainer.critic_warmup": critic_warmup,
    "trainer.default_local_dir": same("trainer.output_dir"),
    "trainer.default_hdfs_dir": only((None,), "off", otherwise="checkpoints are written to a local folder"),
    "trainer.resume_mode": resume_mode,
    "trainer.resume_from_path": resume_path,
    "trainer.max_actor_ckpt_to_keep": same("trainer.keep_checkpoints"),
    "trainer.max_critic_ckpt_to_keep": same("trainer.keep_checkpoints"),
    "trainer.del_local_ckpt_after_load": only((False,), "off", otherwise="a checkpoint that was loaded is kept"),
    "trainer.device": renamed("plan.device", {"cuda": "cuda", "cpu": "cpu"}, reason=""),
    "trainer.balance_batch": inert("one device has nothing to balance"),
    "trainer.esi_redundant_time": inert("`trainer.max_seconds` ends a run in time"),
    "trainer.ray_wait_register_center_timeout": NO_RAY,
    "trainer.use_v1": inert("there is one trainer"),
    "trainer.use_legacy_worker_impl": inert("there is one trainer"),
    "trainer.remote_backend": inert("there is one trainer"),
    "trainer.v1.trainer_mode": only(
        ("sync",), "generation takes turns with training", otherwise="only `sync` exists here"
    ),
    "trainer.v1.*": inert("only other trainer modes than `sync` read it"),
    "trainer.profile_steps": PROFILER,
    "trainer.*nsight_options.*": PROFILER,
    "trainer.npu_profile.*": PROFILER,
}

OTHERS: Mapping[str, Rule] = {
    "model_engine": only(("dp",), "one program for one device and many", otherwise="only `dp` exists here"),
    "ray_kwargs.*": NO_RAY,
    "ray_init.*": NO_RAY,
    "transfer_queue.*": NO_RAY,
    "global_profiler.*": PROFILER,
    "distillation.enabled": only((False,), "off", otherwise="there is no distillation"),
    "distillation.*": inert("there is no distillation"),
    "skip.*.enable": only((False,), "every step generates", otherwise="every step generates"),
    "skip.*": inert("every step generates"),
    "hydra.*": inert("there is no Hydra; `trainer.output_dir` is where a run writes"),
    "actor_rollout_ref.profiler.*": PROFILER,
    "critic.profiler.*": PROFILER,
}

KEYS: Mapping[str, Rule] = {
    **DATA,
    **ROLES,
    **{f"actor_rollout_ref.rollout.{name}": rule for name, rule in _ROLLOUT.items()},
    **ALGORITHM,
    **REWARD,
    **TRAINER,
    **OTHERS,
}
"full key, or pattern with `*`, to rule; an exact key goes before a pattern"

DEFAULTS_THAT_DIFFER: Mapping[str, tuple[str, str]] = {
    "data.train_batch_size": ("1024", "trainer.batch_size"),
    "data.max_response_length": ("512", "data.max_response_length"),
    "data.filter_overlong_prompts": ("false", "data.overlong_prompts"),
    "trainer.total_epochs": ("30", "trainer.num_epochs"),
    "trainer.save_freq": ("-1", "trainer.save_every"),
    "trainer.logger": ("console,wandb", "trainer.loggers"),
    "trainer.n_gpus_per_node": ("8", "plan.num_devices"),
}
"verl's default and the native key, where ours is another and it changes the run"
