"""Each of verl's keys, alone or with those it depends on."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.facts import facts
from fakes.verl_settings import judge_config, load_config

from rl_compat.config.settings import settings, values_of
from rl_compat.errors import ConfigError

A, R, M = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
C = "algorithm.rollout_correction"


def changed(*arguments: str) -> dict[str, Any]:
    """The native settings that the arguments moved away from their defaults."""
    values = values_of(load_config(None, arguments).config)
    return {key: value for key, value in values.items() if value != settings()[key].default}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["data.train_batch_size=8"], {"trainer.batch_size": 8, "trainer.mini_batch_size": 8}),
        (["data.train_max_samples=-1", "data.val_max_samples=50"], {"data.max_val_samples": 50}),
        (["data.filter_overlong_prompts=True"], {}),
        (["data.filter_overlong_prompts=False"], {"data.overlong_prompts": "error"}),
        (["data.filter_overlong_prompts=False", "data.truncation=left"], {"data.overlong_prompts": "left"}),
        (["data.filter_overlong_prompts=True", "data.truncation=error"], {}),
        (["data.seed=null"], {}),
        (
            ["data.train_files=['a.parquet','b.parquet']"],
            {"data.train_files": ("a.parquet", "b.parquet"), "data.val_files": ()},
        ),
        ([f"{R}.n=5", "algorithm.adv_estimator=grpo"], {"algorithm.name": "grpo", "algorithm.group_size": 5}),
        ([f"{R}.max_model_len=4096"], {"rollout.max_model_len": 4096}),
        ([f"{R}.max_model_len=null"], {}),
        (["algorithm.lam=0.95"], {"algorithm.gae_lambda": 0.95}),
        (["algorithm.norm_adv_by_std_in_grpo=False"], {"algorithm.normalize_by_std": False}),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.01"],
            {"algorithm.kl_in_reward": "k1", "algorithm.kl_coef": 0.01},
        ),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=low_var_kl", "algorithm.kl_ctrl.type=adaptive"],
            {"algorithm.kl_in_reward": "k3", "algorithm.kl_controller.type": "adaptive"},
        ),
        ([f"{A}.use_kl_loss=True"], {"algorithm.kl_loss": "k3"}),
        (
            [f"{A}.use_kl_loss=True", f"{A}.kl_loss_type=mse", f"{A}.kl_loss_coef=0.02"],
            {"algorithm.kl_loss": "k2", "algorithm.kl_loss_coef": 0.02},
        ),
        ([f"{A}.clip_ratio=0.3"], {"algorithm.clip_low": 0.3, "algorithm.clip_high": 0.3}),
        (
            [f"{A}.clip_ratio=0.3", f"{A}.clip_ratio_high=0.28"],
            {"algorithm.clip_low": 0.3, "algorithm.clip_high": 0.28},
        ),
        (
            [f"{A}.clip_ratio_c=10.0", f"{A}.entropy_coeff=0.01"],
            {"algorithm.clip_dual": 10.0, "algorithm.entropy_coef": 0.01},
        ),
        ([f"{A}.ppo_epochs=2", "critic.ppo_epochs=2"], {"algorithm.num_epochs": 2}),
        (
            [f"{A}.use_dynamic_bsz=True", f"{A}.ppo_max_token_len_per_gpu=4096"],
            {"plan.max_tokens_per_micro_batch": 4096},
        ),
        ([f"{A}.use_dynamic_bsz=True", f"{A}.ppo_micro_batch_size_per_gpu=4"], {}),
        ([f"{A}.ppo_max_token_len_per_gpu=4096"], {}),
        ([f"{A}.ppo_micro_batch_size=8"], {"plan.micro_batch_size": 8}),
        (
            [f"{A}.ppo_micro_batch_size_per_gpu=8", f"{R}.log_prob_micro_batch_size_per_gpu=2"],
            {"plan.micro_batch_size": 2},
        ),
        (
            [f"{A}.fsdp_config.param_offload=False", "actor_rollout_ref.ref.fsdp_config.param_offload=True"],
            {"plan.offload_idle_models": True},
        ),
        (["critic.model.fsdp_config.optimizer_offload=True"], {"plan.offload_optimizer": True}),
        (["critic.fsdp.offload_policy=True"], {"plan.offload_idle_models": True, "plan.offload_optimizer": True}),
        ([f"+{A}.fsdp_config.mixed_precision.param_dtype=float16"], {"plan.compute_dtype": "fp16"}),
        ([f"+{A}.fsdp_config.mixed_precision={{param_dtype: fp32}}"], {"plan.compute_dtype": "fp32"}),
        ([f"{A}.fsdp_config.model_dtype=bf16"], {}),
        ([f"{R}.dtype=bfloat16"], {"plan.rollout_dtype": "bf16"}),
        ([f"+{M}.override_config.attn_implementation=eager"], {"plan.attention": "eager"}),
        ([f"+{M}.override_config={{attn_implementation: sdpa}}"], {"plan.attention": "sdpa"}),
        (
            [f"{M}.lora_rank=8", f"{M}.lora_alpha=32", f"{M}.target_modules=[q_proj,v_proj]"],
            {"model.lora_rank": 8, "model.lora_alpha": 32.0, "model.lora_targets": ("q_proj", "v_proj")},
        ),
        ([f"{M}.lora_rank=8", f"{M}.target_modules=all-linear"], {"model.lora_rank": 8}),
        (
            [f"{M}.enable_gradient_checkpointing=True", f"{M}.use_remove_padding=True"],
            {"plan.gradient_checkpointing": True},
        ),
        ([f"{R}.name=hf"], {"rollout.engine": "transformers"}),
        (
            [f"{R}.top_k=-1", f"{R}.top_p=0.9", f"{R}.temperature=0.7"],
            {"rollout.top_p": 0.9, "rollout.temperature": 0.7},
        ),
        ([f"{R}.top_k=50"], {"rollout.top_k": 50}),
        (
            [f"{R}.val_kwargs.temperature=0.6", f"{R}.val_kwargs.do_sample=True"],
            {"trainer.validation_temperature": 0.6},
        ),
        ([f"{R}.val_kwargs.temperature=0.6", f"{R}.val_kwargs.do_sample=False"], {}),
        (["critic.cliprange_value=0.2"], {"algorithm.clip_value": 0.2}),
        ([f"{A}.grad_clip=0.5"], {"optimizer.max_grad_norm": 0.5}),
        ([f"{A}.grad_clip=0.5", f"{A}.optim.clip_grad=0.7"], {"optimizer.max_grad_norm": 0.7}),
        ([f"{A}.optim.lr_warmup_steps=-1", f"{A}.optim.lr_warmup_steps_ratio=0."], {}),
        (
            [
                f"{A}.optim.lr_warmup_steps=10",
                "data.train_batch_size=32",
                f"{A}.ppo_mini_batch_size=8",
                f"{A}.ppo_epochs=2",
            ],
            {"optimizer.warmup_steps": 80, "trainer.mini_batch_size": 8, "algorithm.num_epochs": 2},
        ),
        (
            [f"{A}.optim.lr_warmup_steps_ratio=0.1", "trainer.total_training_steps=50"],
            {"optimizer.warmup_steps": 5, "trainer.num_steps": 50},
        ),
        ([f"{A}.optim.warmup_style=cosine"], {"optimizer.schedule": "cosine"}),
        (["trainer.save_freq=-1", "trainer.test_freq=5"], {"trainer.save_every": 0, "trainer.validate_every": 5}),
        (["trainer.total_training_steps=null"], {}),
        (["trainer.critic_warmup=0"], {}),
        (["trainer.critic_warmup=5"], {"algorithm.critic_warmup_steps": 4}),
        (["trainer.logger=['console','file']"], {"trainer.loggers": ("console", "jsonl")}),
        (['trainer.logger=["console","wandb"]'], {"trainer.loggers": ("console", "wandb")}),
        (["trainer.resume_mode=disable"], {"trainer.resume": "never"}),
        (
            ["trainer.resume_mode=resume_path", "trainer.resume_from_path=runs/a/step_5"],
            {"trainer.resume": "runs/a/step_5"},
        ),
        (["trainer.resume_from_path=runs/a/step_5"], {}),
        (["trainer.n_gpus_per_node=4", "trainer.nnodes=2"], {"plan.num_devices": 4, "plan.num_nodes": 2}),
        (
            [
                "reward.reward_model.enable=true",
                "reward.reward_model.model_path=scores",
                "reward.reward_model.enable_resource_pool=true",
                "reward.reward_model.n_gpus_per_node=2",
                "reward.reward_model.nnodes=2",
            ],
            {
                "reward.model": "scores",
                "reward.functions": (),
                "pools.reward.roles": ("reward",),
                "pools.reward.num_devices": 2,
                "pools.reward.num_nodes": 2,
            },
        ),
        (["reward_model.n_gpus_per_node=2", "reward_model.nnodes=1"], {}),
        (
            ["trainer.n_gpus_per_node=8", "actor_rollout_ref.actor.fsdp_config.fsdp_size=4"],
            {"plan.num_devices": 8, "plan.num_shards": 4},
        ),
        (["actor_rollout_ref.actor.fsdp_config.fsdp_size=-1"], {}),
        (
            [
                "trainer.project_name=p",
                "trainer.experiment_name=e",
                "trainer.default_local_dir=runs/${trainer.project_name}",
            ],
            {"trainer.project": "p", "trainer.experiment": "e", "trainer.output_dir": "runs/p"},
        ),
        (["trainer.max_actor_ckpt_to_keep=3", "trainer.max_critic_ckpt_to_keep=5"], {"trainer.keep_checkpoints": 5}),
        (
            ["reward.custom_reward_function.path=own.py", "reward.custom_reward_function.name=score"],
            {"reward.functions": ("own.py:score",)},
        ),
        (
            ["custom_reward_function.path=own.py", "+custom_reward_function.reward_kwargs.bonus=0.5"],
            {"reward.functions": ("own.py:compute_score",), "reward.function_arguments": {"bonus": "0.5"}},
        ),
        (["reward_model.enable=False", "reward_model.reward_manager=naive"], {}),
        (["~critic.optim.lr"], {}),
        (["ray_kwargs.ray_init.num_cpus=8", "hydra.run.dir=x", "global_profiler.steps=[1]"], {}),
    ],
)
def test_a_key_becomes_the_setting_that_it_means(arguments: list[str], expected: dict[str, Any]) -> None:
    assert changed(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["algorithm.adv_estimator=sarsa"], ["gae", "grpo"]),
        ([f"{R}.ignore_eos=True"], []),
        ([f"{R}.name=mine"], ["native", "vllm"]),
        ([f"{A}.policy_loss.loss_mode=mine"], ["vanilla", "dppo_tv"]),
        ([f"{A}.policy_loss.loss_mode=dro"], ["dro", "0"]),
        ([f"{A}.use_kl_loss=True", f"{A}.kl_loss_type=full"], ["full"]),
        ([f"{A}.optim.lr_warmup_steps_ratio=0.1"], ["trainer.total_training_steps"]),
        ([f"{A}.optim.weight_decay=0.1", "critic.optim.weight_decay=0.2"], ["optimizer.weight_decay"]),
        ([f"{M}.override_config.attn_implementation=xformers"], ["flash_attention_2"]),
        (["reward_model.enable=True"], []),
        (["reward.reward_manager.name=batch"], ["naive", "dapo"]),
        ([f"{C}.rollout_token_veto_threshold=1e-4"], ["rollout_rs=seq_max_k2"]),
        ([f"{C}.rollout_rs=token_k2"], ["rollout_rs_threshold"]),
        ([f"{C}.rollout_rs_threshold='1,2,3'", f"{C}.rollout_rs='token_k1,token_k2'"], ["2", "3"]),
        ([f"{C}.rollout_is=word"], ["token", "sequence"]),
        (["trainer.val_only=True"], ["rlc eval"]),
        ([f"{R}.multi_turn.enable=True"], []),
        (["data.apply_chat_template_kwargs.enable_thinking=False"], ["model.chat_template=FILE"]),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(arguments: list[str], named: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, arguments)

    assert caught.value.exit_code == 2
    assert {arguments[-1], *named} <= facts(caught.value)


UNDECLARED = {
    "trainer.remove_previous_ckpt_in_save=True": {"trainer.keep_checkpoints": 1},
    "trainer.remove_previous_ckpt_in_save=False": {},
    "trainer.val_generations_to_log_to_wandb=10": {},
    "data.cache_dir=/tmp/cache": {},
    "data.filter_prompts=True": {},
    "data.need_tools_kwargs=False": {},
    "data.chat_template_func=null": {},
    f"{A}.optim.lr_decay_style=cosine": {"optimizer.schedule": "cosine"},
    f"{A}.optim.lr_decay_steps=100": {},
    f"{A}.optim.min_lr=0": {},
    "actor_rollout_ref.ref.tiled_mlp.enabled=False": {},
    f"{M}.freeze_vision_tower=True": {},
    f"{R}.enable_sleep_mode=True": {},
    f"{R}.micro_batch_size=8": {},
    "async_training.staleness_threshold=0.5": {
        "trainer.flow": "async",
        "off_policy.importance": "token",
        "off_policy.truncate": 2.0,
    },
    "async_training.trigger_parameter_sync_step=4": {"trainer.batch_size": 128},
    "async_training.partial_rollout=False": {"rollout.on_update": "wait"},
    "async_training.use_rollout_log_probs=True": {"off_policy.bypass": True},
    "async_training.stream_update=True": {},
    "rollout.nnodes=1": {},
    "rollout.total_epochs=3": {"trainer.num_epochs": 3},
}
"keys that verl reads and has in no configuration of its PPO trainer"


@pytest.mark.parametrize("argument", UNDECLARED)
def test_a_key_that_verl_reads_without_declaring_it_is_known(argument: str) -> None:
    assert changed(argument) == UNDECLARED[argument]
    (line,) = (line for line in judge_config(None, [argument]).report if line.key == argument.partition("=")[0])
    assert line.verdict in ("honoured", "translated", "without effect")


@pytest.mark.parametrize(
    ("argument", "warned"),
    [
        (f"+{R}.engine_kwargs.vllm.swap_space=8", True),
        (f"{R}.engine_kwargs.vllm={{}}", False),
        (f"{R}.data_parallel_size=2", True),
        (f"{R}.data_parallel_size=1", False),
    ],
)
def test_what_an_engine_would_be_given_and_is_not_is_warned_of(argument: str, warned: bool) -> None:
    (line,) = load_config(None, [argument]).report

    assert (line.verdict, line.warn) == ("without effect", warned)
