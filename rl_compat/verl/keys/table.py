"""All known keys of verl, with their rules."""

from __future__ import annotations

from collections.abc import Mapping

from rl_compat.verl.keys import correction, meanings, policy, reward
from rl_compat.verl.keys.role_keys import PROFILER, ROLES
from rl_compat.verl.keys.rollout_keys import NO_TOOLS, ROLLOUT
from rl_compat.verl.keys.rules import Rule, inert, only, other_than, renamed, same

TEXT_ONLY = inert("models are text only")
NO_RAY = inert("one device runs in this process, without Ray")
NO_REWARD_SERVER = inert("a reward model runs in this process with its own template; no server is started")
NO_SANDBOX = "code sandboxes are not supported; use `reward.functions`"

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
    "data.val_batch_size": inert("validation uses the rollout engine, which forms its own batches"),
    "data.train_max_samples": meanings.sample_limit("data.max_train_samples"),
    "data.val_max_samples": meanings.sample_limit("data.max_val_samples"),
    "data.reward_fn_key": only(("data_source", None), "the scorer is picked by `data_source`"),
    "data.filter_overlong_prompts": meanings.filter_overlong,
    "data.filter_overlong_prompts_workers": inert("one process filters"),
    "data.truncation": meanings.truncation,
    "data.trust_remote_code": same("model.trust_remote_code"),
    "data.return_raw_input_ids": inert("token ids are always kept"),
    "data.return_raw_chat": inert("the chat is always kept"),
    "data.return_full_prompt": inert("the prompt is always kept"),
    "data.return_multi_modal_inputs": TEXT_ONLY,
    "data.dataloader_num_workers": inert("rows are in memory"),
    "data.use_shm": inert("rows are in memory"),
    "data.validation_shuffle": inert("the order does not affect the accuracy"),
    "data.image_key": TEXT_ONLY,
    "data.video_key": TEXT_ONLY,
    "data.audio_key": TEXT_ONLY,
    "data.image_patch_size": TEXT_ONLY,
    "data.mm_processor_kwargs*": TEXT_ONLY,
    "data.custom_cls.*": only(
        (None,), "no custom class", otherwise="custom dataset classes are not supported; write parquet or JSON lines"
    ),
    "data.sampler.*": only(
        (None,), "no custom sampler", otherwise="rows are drawn in order or shuffled by `data.seed`"
    ),
    "data.datagen.*": only((None,), "no data generation", otherwise="data generation is not supported"),
    "data.continuous_token.enable": only((False,), "off", otherwise="conversations have a single turn"),
    "data.continuous_token.*": inert("conversations have a single turn"),
    "data.tool_config_path": only((None,), "no tools", otherwise=NO_TOOLS),
    "data.function_tool_path": only((None,), "no tools", otherwise=NO_TOOLS),
    "data.apply_chat_template_kwargs": only(
        ({}, None), "none given", otherwise="put the template in a file and set `model.chat_template=FILE`"
    ),
    "data.apply_chat_template_kwargs.*": only((), "put the template in a file and set `model.chat_template=FILE`"),
}

ALGORITHM: Mapping[str, Rule] = {
    "algorithm.adv_estimator": policy.estimator,
    "algorithm.gamma": same("algorithm.gamma"),
    "algorithm.lam": same("algorithm.gae_lambda"),
    "algorithm.norm_adv_by_std_in_grpo": same("algorithm.normalize_by_std"),
    "algorithm.use_kl_in_reward": policy.use_kl_in_reward,
    "algorithm.kl_penalty": policy.kl_penalty,
    "algorithm.kl_ctrl.type": policy.kl_control("algorithm.kl_controller.type"),
    "algorithm.kl_ctrl.kl_coef": policy.kl_control("algorithm.kl_coef"),
    "algorithm.kl_ctrl.horizon": policy.kl_control("algorithm.kl_controller.horizon"),
    "algorithm.kl_ctrl.target_kl": policy.kl_control("algorithm.kl_controller.target"),
    "algorithm.filter_groups.enable": policy.filter_groups,
    "algorithm.filter_groups.metric": policy.filter_metric,
    "algorithm.filter_groups.max_num_gen_batches": policy.filter_rounds,
    "algorithm.filter_groups.max_inflight_gen_batches": inert("a step draws further prompts in sequential rounds"),
    "algorithm.filter_groups.*": inert("only `enable`, `metric` and `max_num_gen_batches` are known"),
    "algorithm.gdpo_reward_keys": same("algorithm.gdpo.parts"),
    "algorithm.gdpo_reward_weights": same("algorithm.gdpo.weights"),
    "algorithm.use_pf_ppo": only((False,), "off", otherwise="the batch is not resampled"),
    "algorithm.pf_ppo.*": inert("the batch is not resampled"),
    "algorithm.rollout_correction.rollout_is": correction.importance,
    "algorithm.rollout_correction.rollout_is_threshold": correction.importance_bound,
    "algorithm.rollout_correction.rollout_is_batch_normalize": correction.normalize,
    "algorithm.rollout_correction.rollout_rs": correction.rejection,
    "algorithm.rollout_correction.rollout_rs_threshold": correction.rejection_bound,
    "algorithm.rollout_correction.rollout_rs_threshold_lower": correction.rejection_bound,
    "algorithm.rollout_correction.rollout_token_veto_threshold": correction.veto,
    "algorithm.rollout_correction.bypass_mode": correction.bypass,
    "algorithm.rollout_correction.loss_type": correction.loss_type,
    "algorithm.rollout_correction.use_policy_gradient": correction.loss_type,
}

REWARD: Mapping[str, Rule] = {
    "reward.custom_reward_function.path": reward.custom_reward("reward.custom_reward_function"),
    "reward.custom_reward_function.name": reward.custom_reward("reward.custom_reward_function"),
    "reward.custom_reward_function.reward_kwargs": reward.reward_argument,
    "reward.custom_reward_function.reward_kwargs.*": reward.reward_argument,
    "custom_reward_function.path": reward.custom_reward("custom_reward_function"),
    "custom_reward_function.name": reward.custom_reward("custom_reward_function"),
    "custom_reward_function.reward_kwargs": reward.reward_argument,
    "custom_reward_function.reward_kwargs.*": reward.reward_argument,
    "reward.num_workers": inert("built-in rewards are fast; `reward.num_processes` applies to custom functions"),
    "reward.reward_manager.name": reward.manager,
    "reward.reward_manager.source": only(
        ("register",), "built in", otherwise="use `reward.functions=file.py:function`"
    ),
    "reward.reward_manager.module.*": inert("use `reward.functions=file.py:function`"),
    "reward.reward_kwargs.overlong_buffer_cfg.*": reward.overlong,
    "reward.reward_kwargs.max_resp_len": reward.longest_response,
    "reward.reward_model.enable": reward.reward_model("reward.reward_model"),
    "reward.reward_model.model_path": reward.reward_model("reward.reward_model"),
    "reward.reward_model.*": NO_REWARD_SERVER,
    "reward.sandbox_fusion.url": only((None,), "off", otherwise=NO_SANDBOX),
    "reward.sandbox_fusion.*": inert(NO_SANDBOX),
    "reward_model.enable": reward.reward_model("reward_model"),
    "reward_model.model.path": reward.reward_model("reward_model"),
    "reward_model.reward_manager": reward.manager,
    "reward_model.overlong_buffer.*": reward.overlong,
    "reward_model.reward_kwargs.overlong_buffer_cfg.*": reward.overlong,
    "reward_model.reward_kwargs.max_resp_len": reward.longest_response,
    "reward_model.sandbox_fusion.url": only((None,), "off", otherwise=NO_SANDBOX),
    "reward_model.*": NO_REWARD_SERVER,
    "reward_manager.name": reward.manager,
    "reward_manager.source": only(("register",), "built in", otherwise="use `reward.functions=file.py:function`"),
    "reward_manager.*": inert("use `reward.functions=file.py:function`"),
    "sandbox_fusion.url": only((None,), "off", otherwise=NO_SANDBOX),
    "sandbox_fusion.*": inert(NO_SANDBOX),
}

TRAINER: Mapping[str, Rule] = {
    "trainer.total_epochs": same("trainer.num_epochs"),
    "trainer.total_training_steps": same("trainer.num_steps"),
    "trainer.project_name": same("trainer.project"),
    "trainer.experiment_name": same("trainer.experiment"),
    "trainer.logger": meanings.loggers,
    "trainer.log_val_generations": inert(
        "samples.jsonl contains `trainer.num_sample_generations` responses of each step"
    ),
    "trainer.rollout_data_dir": inert("samples.jsonl in `trainer.output_dir` has the responses"),
    "trainer.validation_data_dir": inert("samples.jsonl in `trainer.output_dir` has the responses"),
    "trainer.n_gpus_per_node": meanings.num_devices,
    "trainer.nnodes": meanings.num_devices,
    "trainer.save_freq": meanings.interval("trainer.save_every"),
    "trainer.test_freq": meanings.interval("trainer.validate_every"),
    "trainer.val_before_train": same("trainer.validate_before"),
    "trainer.val_only": only((False,), "off", otherwise="use `rlc eval`"),
    "trainer.critic_warmup": meanings.critic_warmup,
    "trainer.default_local_dir": same("trainer.output_dir"),
    "trainer.default_hdfs_dir": only((None,), "off", otherwise="checkpoints are written to a local folder"),
    "trainer.resume_mode": meanings.resume_mode,
    "trainer.resume_from_path": meanings.resume_path,
    "trainer.max_actor_ckpt_to_keep": same("trainer.keep_checkpoints"),
    "trainer.max_critic_ckpt_to_keep": same("trainer.keep_checkpoints"),
    "trainer.del_local_ckpt_after_load": only((False,), "off", otherwise="a loaded checkpoint is kept"),
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
    "trainer.v1.*": inert("only trainer modes other than `sync` read it"),
    "trainer.profile_steps": PROFILER,
    "trainer.*nsight_options.*": PROFILER,
    "trainer.npu_profile.*": PROFILER,
}

OTHERS: Mapping[str, Rule] = {
    "model_engine": other_than(("dp",), "one engine serves any number of devices"),
    "*@*": only((), "config groups of verl have no alternatives here"),
    "--config-name": meanings.config_name,
    "--config-*": inert("the file of `--config-name` is searched there"),
    "--multirun": only((), "one run at a time"),
    **dict.fromkeys(("--cfg", "--package", "--resolve", "--run"), inert("it configures how Hydra prints")),
    "ray_kwargs.*": NO_RAY,
    "ray_init.*": NO_RAY,
    "transfer_queue.*": NO_RAY,
    "global_profiler.*": PROFILER,
    "distillation.enabled": only((False,), "off", otherwise="distillation is not supported"),
    "distillation.*": inert("distillation is not supported"),
    "skip.*.enable": only((False,), "every step generates"),
    "skip.*": inert("every step generates"),
    "hydra.*": inert("Hydra is not used; a run writes to `trainer.output_dir`"),
    "actor_rollout_ref.profiler.*": PROFILER,
    "critic.profiler.*": PROFILER,
}

KEYS: Mapping[str, Rule] = {
    **DATA,
    **ROLES,
    **{f"actor_rollout_ref.rollout.{name}": rule for name, rule in ROLLOUT.items()},
    **ALGORITHM,
    **REWARD,
    **TRAINER,
    **OTHERS,
}
"full key, or pattern with `*`, to rule; an exact key has precedence"

DEFAULTS_THAT_DIFFER: Mapping[str, tuple[str, str]] = {
    "data.train_batch_size": ("1024", "trainer.batch_size"),
    "data.max_response_length": ("512", "data.max_response_length"),
    "data.filter_overlong_prompts": ("false", "data.overlong_prompts"),
    "trainer.total_epochs": ("30", "trainer.num_epochs"),
    "trainer.save_freq": ("-1", "trainer.save_every"),
    "trainer.logger": ("console,wandb", "trainer.loggers"),
    "trainer.n_gpus_per_node": ("8", "plan.num_devices"),
    "actor_rollout_ref.actor.ppo_mini_batch_size": ("256", "trainer.mini_batch_size"),
}
"verl's default and the native key, where our default differs and affects the run"
