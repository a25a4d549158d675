"""verl's command lines: what becomes of each key."""

from __future__ import annotations

from typing import Any

import pytest

from rl_compat.config.load import LoadedConfig, load_config
from rl_compat.config.report import COLUMNS, KeyVerdict, render_report, warnings_of
from rl_compat.config.settings import settings, values_of
from rl_compat.config.types import RunConfig
from rl_compat.config.verl import find_rule, parse_literal, translate_verl
from rl_compat.config.verl_keys import DEFAULTS_THAT_DIFFER, KEYS
from rl_compat.errors import ConfigError

A, R, M = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"

P40_COMMAND = ["data.train_files=data/train.parquet", "data.val_files=data/test.parquet", "data.train_batch_size=1", "data.max_prompt_length=256", "data.max_response_length=256", "actor_rollout_ref.model.path=model", "actor_rollout_ref.actor.optim.lr=1e-6", "critic.optim.lr=1e-5", "actor_rollout_ref.actor.ppo_mini_batch_size=1", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1", "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1", "actor_rollout_ref.rollout.tensor_model_parallel_size=1", "actor_rollout_ref.rollout.gpu_memory_utilization=0.3", "actor_rollout_ref.rollout.max_num_batched_tokens=512", "actor_rollout_ref.rollout.max_num_seqs=1", "actor_rollout_ref.rollout.enable_chunked_prefill=false", "actor_rollout_ref.fsdp_config.cpu_offload=true", "actor_rollout_ref.fsdp_config.offload_params=true", "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1", "critic.model.path=model", "critic.ppo_micro_batch_size_per_gpu=1", "algorithm.kl_ctrl.kl_coef=0.001", "trainer.logger=console", "trainer.val_before_train=False", "trainer.n_gpus_per_node=1", "trainer.nnodes=1", "trainer.save_freq=10", "trainer.test_freq=10", "trainer.total_epochs=2"]

QUICKSTART_COMMAND = ["data.train_files=train.parquet", "data.val_files=test.parquet", "data.train_batch_size=256", "data.max_prompt_length=512", "data.max_response_length=512", "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct", "actor_rollout_ref.actor.optim.lr=1e-6", "actor_rollout_ref.actor.ppo_mini_batch_size=64", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4", "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8", "actor_rollout_ref.rollout.tensor_model_parallel_size=1", "actor_rollout_ref.rollout.gpu_memory_utilization=0.4", "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4", "critic.optim.lr=1e-5", "critic.model.path=Qwen/Qwen2.5-0.5B-Instruct", "critic.ppo_micro_batch_size_per_gpu=4", "algorithm.kl_ctrl.kl_coef=0.001", "trainer.logger=console", "trainer.val_before_train=False", "trainer.n_gpus_per_node=1", "trainer.nnodes=1", "trainer.save_freq=10", "trainer.test_freq=10", "trainer.total_epochs=15"]


def load(*arguments: str) -> LoadedConfig:
    return load_config(None, arguments)


def changed(*arguments: str) -> dict[str, Any]:
    """The native settings that the arguments moved away from their defaults."""
    return {key: value for key, value in values_of(load(*arguments).config).items() if value != settings()[key].default}


def verdict_of(key: str, *arguments: str) -> KeyVerdict:
    return next(line for line in load(*arguments).report if line.key == key)


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*arguments)
    assert caught.value.exit_code == 2
    return caught.value.message


def test_the_command_for_a_p40_is_understood() -> None:
    loaded = load(*P40_COMMAND)

    assert {k: v for k, v in values_of(loaded.config).items() if v != settings()[k].default} == {
        "model.path": "model",
        "model.critic_path": "model",
        "data.train_files": ("data/train.parquet",),
        "data.val_files": ("data/test.parquet",),
        "data.max_prompt_length": 256,
        "rollout.max_num_seqs": 1,
        "rollout.max_num_batched_tokens": 512,
        "rollout.gpu_memory_utilization": 0.3,
        "trainer.batch_size": 1,
        "trainer.mini_batch_size": 1,
        "trainer.num_epochs": 2,
        "trainer.validate_every": 10,
        "trainer.validate_before": False,
        "trainer.loggers": ("console",),
        "plan.offload_idle_models": True,
        "plan.micro_batch_size": 1,
    }
    assert loaded.sources["trainer.batch_size"] == "verl"


def test_the_command_for_a_p40_has_a_verdict_on_every_key() -> None:
    """Two keys that verl never had become offload with a warning; the inert KL coefficient is warned about."""
    report = load(*P40_COMMAND).report

    assert {line.key for line in report if line.verdict != "not given"} == {a.split("=")[0] for a in P40_COMMAND}
    assert {line.key for line in report if line.warn} == {
        "actor_rollout_ref.fsdp_config.cpu_offload",
        "actor_rollout_ref.fsdp_config.offload_params",
        "algorithm.kl_ctrl.kl_coef",
    }
    assert all(line.reason for line in report if line.verdict in ("translated", "without effect"))


def test_the_quickstart_is_understood() -> None:
    config = load(*QUICKSTART_COMMAND).config

    assert (config.trainer.batch_size, config.trainer.mini_batch_size, config.trainer.num_epochs) == (256, 64, 15)
    assert config.plan.micro_batch_size == 4
    assert config.rollout.engine == "auto"
    assert config.algorithm.kl_in_reward == "none"
    assert config.model.path == config.model.critic_path == "Qwen/Qwen2.5-0.5B-Instruct"


def test_disabled_logprobs_were_never_a_key_and_change_nothing() -> None:
    line = verdict_of(f"{R}.disable_logprobs", f"+{R}.disable_logprobs=true")

    assert line.verdict == "without effect"
    assert line.warn


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
        (["data.train_files=['a.parquet','b.parquet']"], {"data.train_files": ("a.parquet", "b.parquet")}),
        ([f"{R}.n=5", "algorithm.adv_estimator=grpo"], {"algorithm.name": "grpo", "algorithm.group_size": 5}),
        (["algorithm.lam=0.95"], {"algorithm.gae_lambda": 0.95}),
        (["algorithm.norm_adv_by_std_in_grpo=False"], {"algorithm.normalize_by_std": False}),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.01"],
            {"algorithm.kl_in_reward": "k1", "algorithm.kl_coef": 0.01},
        ),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=low_var_kl", "algorithm.kl_ctrl.type=adaptive"],
            {"algorithm.kl_in_reward": "k3", "algorithm.kl_controller": "adaptive"},
        ),
        ([f"{A}.use_kl_loss=True"], {"algorithm.kl_loss": "k3"}),
        (
            [f"{A}.use_kl_loss=True", f"{A}.kl_loss_type=mse", f"{A}.kl_loss_coef=0.02"],
            {"algorithm.kl_loss": "k2", "algorithm.kl_loss_coef": 0.02},
        ),
        ([f"{A}.clip_ratio=0.3"], {"algorithm.clip_low": 0.3, "algorithm.clip_high": 0.3}),
        ([f"{A}.clip_ratio=0.3", f"{A}.clip_ratio_high=0.28"], {"algorithm.clip_low": 0.3, "algorithm.clip_high": 0.28}),
        ([f"{A}.clip_ratio_c=10.0", f"{A}.entropy_coeff=0.01"], {"algorithm.clip_dual": 10.0, "algorithm.entropy_coef": 0.01}),
        ([f"{A}.ppo_epochs=2", "critic.ppo_epochs=2"], {"algorithm.num_epochs": 2}),
        ([f"{A}.use_dynamic_bsz=True", f"{A}.ppo_max_token_len_per_gpu=4096"], {"plan.max_tokens_per_micro_batch": 4096}),
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
        ([f"{M}.lora_rank=8", f"{M}.lora_alpha=32", f"{M}.target_modules=[q_proj,v_proj]"],
         {"model.lora_rank": 8, "model.lora_alpha": 32.0, "model.lora_targets": ("q_proj", "v_proj")}),
        ([f"{M}.lora_rank=8", f"{M}.target_modules=all-linear"], {"model.lora_rank": 8}),
        ([f"{M}.enable_gradient_checkpointing=True", f"{M}.use_remove_padding=True"], {"plan.gradient_checkpointing": True}),
        ([f"{R}.name=hf"], {"rollout.engine": "transformers"}),
        ([f"{R}.top_k=-1", f"{R}.top_p=0.9", f"{R}.temperature=0.7"], {"rollout.top_p": 0.9, "rollout.temperature": 0.7}),
        ([f"{R}.top_k=50"], {"rollout.top_k": 50}),
        ([f"{R}.val_kwargs.temperature=0.6", f"{R}.val_kwargs.do_sample=True"], {"trainer.validation_temperature": 0.6}),
        ([f"{R}.val_kwargs.temperature=0.6", f"{R}.val_kwargs.do_sample=False"], {}),
        (["critic.cliprange_value=0.2"], {"algorithm.clip_value": 0.2}),
        ([f"{A}.grad_clip=0.5"], {"optimizer.max_grad_norm": 0.5}),
        ([f"{A}.grad_clip=0.5", f"{A}.optim.clip_grad=0.7"], {"optimizer.max_grad_norm": 0.7}),
        ([f"{A}.optim.lr_warmup_steps=-1", f"{A}.optim.lr_warmup_steps_ratio=0."], {}),
        (
            [f"{A}.optim.lr_warmup_steps=10", "data.train_batch_size=32", f"{A}.ppo_mini_batch_size=8", f"{A}.ppo_epochs=2"],
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
        (["trainer.n_gpus_per_node=4", "trainer.nnodes=2"], {"plan.num_devices": 8}),
        (
            ["trainer.project_name=p", "trainer.experiment_name=e", "trainer.default_local_dir=runs/${trainer.project_name}"],
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
)  # fmt: skip
def test_a_key_becomes_the_setting_that_it_means(arguments: list[str], expected: dict[str, Any]) -> None:
    assert changed(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["algorithm.adv_estimator=rloo"], "the advantage estimators are `gae` and `grpo`"),
        ([f"{R}.tensor_model_parallel_size=2"], "set it to 1"),
        ([f"{R}.name=mine"], "the engines are"),
        ([f"{A}.strategy=megatron"], "only fsdp and fsdp2"),
        ([f"{A}.policy_loss.loss_mode=gspo"], "only `vanilla`"),
        ([f"{A}.use_kl_loss=True", f"{A}.kl_loss_type=full"], "`kl_loss_type=full` is not among"),
        ([f"{A}.optim.lr_warmup_steps_ratio=0.1"], "the number of steps is open"),
        ([f"{A}.optim.weight_decay=0.1", "critic.optim.weight_decay=0.2"], "sets `optimizer.weight_decay` too"),
        ([f"{M}.override_config.attn_implementation=xformers"], "`flash_attention_2` exist here"),
        (["algorithm.filter_groups.enable=True"], "groups are not filtered"),
        (["reward_model.enable=True"], "no reward model is served"),
        (["reward.reward_manager.name=dapo"], "only `naive`"),
        (["trainer.val_only=True"], "rlc eval"),
        ([f"{R}.multi_turn.enable=True"], "single turns"),
        (["data.apply_chat_template_kwargs.enable_thinking=False"], "model.chat_template"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(arguments: list[str], words: str) -> None:
    message = refusal(*arguments)

    assert f"`{arguments[-1]}` cannot be honoured: " in message
    assert words in message


def test_every_refused_key_is_named_at_once() -> None:
    message = refusal("algorithm.adv_estimator=rloo", f"{R}.tensor_model_parallel_size=2")

    assert "adv_estimator=rloo" in message
    assert "tensor_model_parallel_size=2" in message


@pytest.mark.parametrize(
    ("argument", "close"),
    [
        ("actor_rollout_ref.actor.ppo_mini_batchsize=1", "actor_rollout_ref.actor.ppo_mini_batch_size"),
        ("+actor_rollout_ref.rollot.n=2", "actor_rollout_ref.rollout.n"),
        ("algorithm.adv_estimater=gae", "algorithm.adv_estimator"),
        ("trainer.total_epoch=3", "trainer.total_epochs"),
        ("~critic.model.paht", "critic.model.path"),
    ],
)
def test_an_unknown_key_of_verl_gets_the_nearest(argument: str, close: str) -> None:
    """A-UX-05."""
    with pytest.raises(ConfigError) as caught:
        load(argument)

    assert "there is no setting" in caught.value.message
    assert close in str(caught.value.hint)


@pytest.mark.parametrize(
    "argument",
    ["data.train_batch_size=many", f"{A}.optim.lr=fast", f"{A}.optim.lr_warmup_steps=few", "trainer.nnodes=one"],
)
def test_a_value_of_the_wrong_kind_names_the_argument(argument: str) -> None:
    assert argument in refusal(argument)


def test_a_native_key_wins_over_one_of_verls() -> None:
    loaded = load("trainer.batch_size=4", "data.train_batch_size=8")

    assert loaded.config.trainer.batch_size == 4
    line = next(line for line in loaded.report if line.key == "data.train_batch_size")
    assert (line.verdict, line.reason, line.warn) == ("without effect", "`trainer.batch_size` is given too", True)


def test_keys_of_a_critic_have_no_effect_under_grpo() -> None:
    loaded = load("algorithm.adv_estimator=grpo", f"{R}.n=4", "critic.optim.lr=1e-4", "critic.ppo_epochs=3")

    assert loaded.config.optimizer.critic_lr == RunConfig().optimizer.critic_lr
    assert loaded.config.algorithm.num_epochs == 1
    assert verdict_of(
        "critic.optim.lr", "algorithm.adv_estimator=grpo", f"{R}.n=4", "critic.optim.lr=1e-4"
    ).verdict == ("without effect")


def test_defaults_of_verl_that_differ_are_listed_with_ours() -> None:
    line = verdict_of("data.max_response_length", "data.train_batch_size=8")

    assert (line.value, line.verdict, line.reason) == ("512", "not given", "verl's default; `256` here")
    assert all(value != str(settings()[native].default) for value, native in DEFAULTS_THAT_DIFFER.values())


def test_translate_gives_native_values_and_verdicts() -> None:
    values, verdicts = translate_verl(["+data.train_batch_size=8", f"{R}.name=vllm"])

    assert values == {"trainer.batch_size": 8, "rollout.engine": "auto"}
    assert [line.key for line in verdicts[:2]] == ["data.train_batch_size", f"{R}.name"]


def test_the_report_has_a_row_per_key() -> None:
    report = load("data.train_batch_size=8", "algorithm.kl_ctrl.kl_coef=0.1").report
    rows = render_report(report)

    assert rows[0] == ("data.train_batch_size", "8", "honoured", "trainer.batch_size", "prompts")
    assert all(len(row) == len(COLUMNS) for row in rows)
    assert [sentence.split("`")[1] for sentence in warnings_of(report)] == ["algorithm.kl_ctrl.kl_coef=0.1"]


def test_a_pattern_is_less_than_an_exact_key() -> None:
    assert find_rule("algorithm.filter_groups.enable") is KEYS["algorithm.filter_groups.enable"]
    assert find_rule("algorithm.filter_groups.metric") is KEYS["algorithm.filter_groups.*"]
    assert find_rule("algorithm.filter_group.metric") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("True", True),
        ("1e-6", 1e-6),
        ("10", 10),
        ("'10'", "10"),
        ("['a', \"b\", 3]", ["a", "b", 3]),
        ("{a: 1, b: {c: null}}", {"a": 1, "b": {"c": None}}),
        ("bare text", "bare text"),
    ],
)
def test_a_literal_is_read_as_hydra_reads_it(text: str, value: Any) -> None:
    assert parse_literal(text) == value
