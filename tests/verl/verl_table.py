"""The table of docs/verl_keys.md: for every public key of verl, a plausible value and its translation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rl_compat import verl
from rl_compat.config.load import judge_config
from rl_compat.config.settings import values_of
from rl_compat.verl.keys.table import releases
from rl_compat.verl.translate import default_text

PAGE = Path(__file__).parents[2] / "docs" / "verl_keys.md"
A, R, C = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm.rollout_correction"

VALUES: Mapping[str, str] = {
    "actor_rollout_ref.model.lora_adapter_path": "adapters",
    "actor_rollout_ref.model.path": "Qwen/Qwen2.5-0.5B-Instruct",
    "actor_rollout_ref.model.target_modules": "[q_proj,v_proj]",
    "actor_rollout_ref.model.tokenizer_path": "tokenizer",
    f"{A}.clip_ratio_c": "10",
    f"{A}.loss_scale_factor": "1024",
    f"{A}.rollout_n": "4",
    f"{A}.optim.override_optimizer_config": "{fused: true}",
    "actor_rollout_ref.model.custom_chat_template": "'{{ messages }}'",
    "actor_rollout_ref.model.exclude_modules": "lm_head",
    "actor_rollout_ref.model.external_lib": "my_models",
    "actor_rollout_ref.model.hf_config_path": "config",
    "actor_rollout_ref.model.lora.dropout": "0.1",
    "actor_rollout_ref.ref.model": "other-model",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": "16384",
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": "true",
    "actor_rollout_ref.ref.rollout_n": "4",
    "actor_rollout_ref.ref.strategy": "fsdp2",
    f"{R}.log_prob_max_token_len_per_gpu": "16384",
    f"{R}.log_prob_use_dynamic_bsz": "true",
    f"{R}.quantization": "fp8",
    f"{R}.quantization_config_file": "fp8.json",
    "critic.enable": "false",
    "critic.forward_max_token_len_per_gpu": "16384",
    "critic.loss_agg_mode": "seq-mean-token-mean",
    "critic.loss_scale_factor": "1024",
    "critic.model.custom_chat_template": "'{{ messages }}'",
    "critic.model.exclude_modules": "lm_head",
    "critic.model.external_lib": "my_models",
    "critic.model.hf_config_path": "config",
    "critic.model.lora.dropout": "0.1",
    "critic.model.lora_adapter_path": "adapters",
    "critic.model.tokenizer_path": "tokenizer",
    "critic.optim.override_optimizer_config": "{fused: true}",
    "critic.ppo_epochs": "2",
    "critic.rollout_n": "4",
    "critic.use_dynamic_bsz": "true",
    "custom_reward_function.name": "score",
    "data.custom_cls.name": "MyDataset",
    "data.custom_cls.path": "dataset.py",
    "data.datagen.name": "MyGenerator",
    "data.datagen.path": "generate.py",
    "data.function_tool_path": "tools.py",
    "data.sampler.class_name": "MySampler",
    "data.sampler.class_path": "sampler.py",
    "data.tool_config_path": "tools.yaml",
    "reward.custom_reward_function.name": "score",
    "reward.sandbox_fusion.url": "http://sandbox",
    "reward_manager.name": "dapo",
    "reward_model.sandbox_fusion.url": "http://sandbox",
    "sandbox_fusion.url": "http://sandbox",
    "trainer.default_hdfs_dir": "hdfs://runs",
    f"{A}.kl_loss_type": "mse",
    f"{A}.loss_agg_mode": "seq-mean-token-sum-norm",
    f"{A}.policy_loss.dro_beta": "0.2",
    f"{A}.policy_loss.loss_mode": "gspo",
    f"{A}.ppo_mini_batch_size": "8",
    f"{A}.strategy": "fsdp2",
    f"{A}.tis_imp_ratio_cap": "2",
    f"{R}.name": "vllm",
    f"{R}.temperature": "0.7",
    f"{R}.top_k": "50",
    f"{R}.top_p": "0.9",
    f"{R}.val_kwargs.temperature": "0.6",
    f"{R}.val_kwargs.top_p": "0.9",
    f"{R}.gpu_memory_utilization": "0.4",
    f"{R}.max_model_len": "4096",
    "algorithm.adv_estimator": "reinforce_plus_plus",
    "algorithm.filter_groups.metric": "acc",
    "algorithm.gamma": "0.99",
    "algorithm.kl_ctrl.type": "adaptive",
    "algorithm.kl_penalty": "low_var_kl",
    "algorithm.lam": "0.95",
    f"{C}.loss_type": "reinforce",
    f"{C}.rollout_is": "token",
    f"{C}.rollout_is_threshold": "0.5_5.0",
    f"{C}.rollout_rs": "seq_mean_k3",
    f"{C}.rollout_rs_threshold": "0.01",
    f"{C}.rollout_rs_threshold_lower": "0.5",
    f"{C}.rollout_token_veto_threshold": "1e-4",
    "critic.model.path": "Qwen/Qwen2.5-0.5B-Instruct",
    "critic.optim.lr_scheduler_type": "cosine",
    "critic.strategy": "fsdp2",
    "critic.ppo_mini_batch_size": "8",
    "custom_reward_function.path": "score.py",
    "data.seed": "7",
    "data.tokenizer": "tokenizer",
    "data.train_batch_size": "64",
    "data.train_files": "[a.parquet,b.parquet]",
    "data.train_max_samples": "1000",
    "data.truncation": "left",
    "data.val_files": "test.parquet",
    "data.val_max_samples": "100",
    "reward.custom_reward_function.path": "score.py",
    "reward.reward_manager.name": "dapo",
    "reward.reward_model.enable": "true",
    "reward.reward_model.model_path": "reward-model",
    "reward_model.enable": "true",
    "reward_model.model.path": "reward-model",
    "reward_model.reward_manager": "dapo",
    "trainer.critic_warmup": "10",
    "trainer.default_local_dir": "runs/x",
    "trainer.logger": '["console","wandb"]',
    "trainer.max_actor_ckpt_to_keep": "3",
    "trainer.max_critic_ckpt_to_keep": "3",
    "trainer.n_gpus_per_node": "4",
    "trainer.nnodes": "2",
    "trainer.resume_from_path": "runs/x/global_step_10",
    "trainer.resume_mode": "disable",
    "trainer.save_freq": "20",
    "trainer.test_freq": "5",
    "trainer.total_training_steps": "100",
    **{f"{role}.optim.lr_scheduler_type": "cosine" for role in (A, "critic")},
    **{f"{role}.optim.warmup_style": "cosine" for role in (A, "critic")},
    **{f"{role}.optim.lr_warmup_steps": "10" for role in (A, "critic")},
    **{f"{role}.optim.lr_warmup_steps_ratio": "0.1" for role in (A, "critic")},
    **{f"{role}.optim.min_lr_ratio": "0.1" for role in (A, "critic")},
    **{f"{role}.optim.betas": "[0.9,0.95]" for role in (A, "critic")},
}
"a value that someone would give, where doubling or flipping the default would not be one"

GROUPS = ["algorithm.adv_estimator=grpo", f"{R}.n=4"]

COMPANIONS: Mapping[str, Sequence[str]] = {
    f"{A}.kl_loss_": [f"{A}.use_kl_loss=true"],
    f"{A}.policy_loss.clip_cov": [f"{A}.policy_loss.loss_mode=clip_cov"],
    f"{A}.policy_loss.kl_cov": [f"{A}.policy_loss.loss_mode=kl_cov"],
    f"{A}.policy_loss.ppo_kl_coef": [f"{A}.policy_loss.loss_mode=kl_cov"],
    f"{A}.policy_loss.dro_beta": [f"{A}.policy_loss.loss_mode=dro"],
    f"{A}.tau_": [f"{A}.policy_loss.loss_mode=sapo"],
    f"{A}.ppo_max_token_len_per_gpu": [f"{A}.use_dynamic_bsz=true"],
    f"{R}.tensor_model_parallel_size": ["trainer.n_gpus_per_node=4"],
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": [f"{A}.use_dynamic_bsz=true"],
    f"{R}.log_prob_max_token_len_per_gpu": [f"{A}.use_dynamic_bsz=true"],
    "critic.ppo_max_token_len_per_gpu": [f"{A}.use_dynamic_bsz=true"],
    "critic.forward_max_token_len_per_gpu": [f"{A}.use_dynamic_bsz=true"],
    f"{R}.n": ["algorithm.adv_estimator=grpo"],
    f"{R}.nnodes": [],
    f"{R}.name": [],
    f"{R}.n_gpus_per_node": [],
    "actor_rollout_ref.model.lora_alpha": ["actor_rollout_ref.model.lora_rank=8"],
    "actor_rollout_ref.model.lora.alpha": ["actor_rollout_ref.model.lora_rank=8"],
    "actor_rollout_ref.model.lora.dropout": ["actor_rollout_ref.model.lora_rank=8"],
    "actor_rollout_ref.model.target_modules": ["actor_rollout_ref.model.lora_rank=8"],
    "critic.model.lora_alpha": ["critic.model.lora_rank=8"],
    "critic.model.lora.alpha": ["critic.model.lora_rank=8"],
    "critic.model.lora.dropout": ["critic.model.lora_rank=8"],
    "algorithm.filter_groups.enable": GROUPS,
    "algorithm.filter_groups.m": [*GROUPS, "algorithm.filter_groups.enable=true"],
    "algorithm.kl_ctrl.": ["algorithm.use_kl_in_reward=true"],
    "algorithm.kl_ctrl.horizon": ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"],
    "algorithm.kl_ctrl.target_kl": ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"],
    "algorithm.kl_penalty": ["algorithm.use_kl_in_reward=true"],
    "algorithm.norm_adv_by_std_in_grpo": GROUPS,
    f"{C}.rollout_is_": [f"{C}.rollout_is=token"],
    f"{C}.rollout_rs": [f"{C}.rollout_rs_threshold=0.01"],
    f"{C}.rollout_rs_threshold": [f"{C}.rollout_rs=seq_mean_k3"],
    f"{C}.rollout_rs_threshold_lower": [f"{C}.rollout_rs=token", f"{C}.rollout_rs_threshold=2"],
    f"{C}.loss_type": [f"{C}.bypass_mode=true"],
    f"{C}.use_policy_gradient": [f"{C}.bypass_mode=true"],
    f"{A}.optim.lr_warmup_steps_ratio": ["trainer.total_training_steps=100"],
    "critic.optim.lr_warmup_steps_ratio": ["trainer.total_training_steps=100"],
    f"{A}.optim.min_lr_ratio": [f"{A}.optim.lr_scheduler_type=cosine"],
    "critic.optim.min_lr_ratio": [f"{A}.optim.lr_scheduler_type=cosine"],
    "custom_reward_function.name": ["custom_reward_function.path=score.py"],
    "reward.custom_reward_function.name": ["reward.custom_reward_function.path=score.py"],
    "reward.reward_model.enable": ["reward.reward_model.model_path=reward-model"],
    "reward.reward_model.model_path": ["reward.reward_model.enable=true"],
    "reward_model.enable": ["reward_model.model.path=reward-model"],
    "reward_model.model.path": ["reward_model.enable=true"],
    "data.truncation": ["data.filter_overlong_prompts=false"],
    f"{R}.val_kwargs.do_sample": [f"{R}.val_kwargs.temperature=0.6"],
    f"{R}.val_kwargs.temperature": [f"{R}.val_kwargs.do_sample=true"],
    "trainer.resume_from_path": ["trainer.resume_mode=resume_path"],
}
"the longest beginning of a key, to the keys it depends on"

ANOTHER = ("trainer.use_v1=true", "trainer.balance_batch=true")
"keys that only verl has and that change nothing, so that a command is read as one of its"
VERDICTS = ("honoured", "translated", "without effect", "refused")
COLUMNS = ("key", "releases", "tried", "companions", "verdict", "becomes", "why")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One key: the releases that have it, the value that was tried, and its translation."""

    key: str
    releases: str
    tried: str
    companions: str
    verdict: str
    becomes: str
    why: str

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(getattr(self, column).replace("|", "\\|") for column in COLUMNS)


@cache
def rows() -> tuple[Row, ...]:
    """A row for every key of the nine releases, in the order of their names."""
    return tuple(row_of(key) for key in sorted(releases().defaults))


def row_of(key: str) -> Row:
    tried, companions = plausible(key), companions_of(key)
    before = _values_with(tuple(companions))
    another = next(text for text in ANOTHER if not text.startswith(f"{key}="))
    loaded = judge_config(None, [another, *companions, f"{key}={tried}"], dialect=verl)
    after = values_of(loaded.config)
    line = next(line for line in loaded.report if line.key == key)
    natives = (line.native_key or "").split(", ") if line.verdict in ("honoured", "translated") else []
    becomes = [f"`{native} = {_shown(after[native])}`" for native in natives]
    becomes += [
        f"`{name} = {_shown(value)}`" for name, value in after.items() if value != before[name] and name not in natives
    ]
    having = releases().having(key)
    return Row(
        key=f"`{key}`",
        releases=having[0] if len(having) == 1 else f"{having[0]} to {having[-1]}",
        tried=f"`{tried}`",
        companions=" ".join(f"`{text}`" for text in companions),
        verdict=line.verdict,
        becomes=", ".join(becomes),
        why=line.reason,
    )


@cache
def _values_with(companions: Sequence[str]) -> Mapping[str, Any]:
    return values_of(judge_config(None, companions, dialect=verl).config)


def plausible(key: str) -> str:
    """A value for a key that is not its default."""
    if key in VALUES:
        return VALUES[key]
    value = _default(key)
    if isinstance(value, bool):
        return str(not value).lower()
    if isinstance(value, int | float):
        return str(value * 2) if value > 0 else "1" if value == 0 else "5"
    if value is None:
        return "4" if key.endswith(("_size", "_size_per_gpu", "_len", "length", "_steps")) else "null"
    return default_text(key) or "null"


def _default(key: str) -> Any:
    """The newest default that is not a reference to another key."""
    known = [value for value in releases().defaults[key] if value != "-" and not str(value).startswith("${")]
    return known[-1] if known else None


def companions_of(key: str) -> list[str]:
    fitting = [start for start in COMPANIONS if key.startswith(start)]
    return [text for text in COMPANIONS[max(fitting, key=len)] if text.partition("=")[0] != key] if fitting else []


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(str(item) for item in value) + "]"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def page() -> str:
    """The page as it should be."""
    made = rows()
    counts = ", ".join(f"{sum(row.verdict == verdict for row in made)} {verdict}" for verdict in VERDICTS)
    lines = [
        "# The public keys of verl",
        "",
        f"The {len(made)} keys of verl {releases().names[0]} to {releases().names[-1]}, each tried with a plausible",
        f"value, together with its companions: {counts}. Another",
        "value may have another verdict; `rlc translate` shows it.",
        "",
        "Written by `python tests/verl/verl_table.py`; a test keeps it current.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + " --- |" * len(COLUMNS),
        *("| " + " | ".join(row.cells) + " |" for row in made),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
