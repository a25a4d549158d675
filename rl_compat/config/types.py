"""What the user asks for. No word here depends on the hardware, except in `plan`, where `auto` is the default."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

AlgorithmName = Literal[
    "ppo",
    "ppo_lagrangian",
    "grpo",
    "dr_grpo",
    "dapo",
    "rloo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "opo",
    "grpo_passk",
    "gpg",
    "gdpo",
    "remax",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
    "sft",
    "dpo",
    "kto",
    "reward_model",
]
PolicyLossName = Literal[
    "auto",
    "ppo_clip",
    "gspo",
    "cispo",
    "sapo",
    "gpg",
    "clip_cov",
    "kl_cov",
    "geo_mean",
    "dro",
    "dppo_tv",
    "dppo_kl",
    "reinforce",
]
KLKind = Literal["none", "k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+"]
"a `+` keeps the value and has the gradient of k2"
Auto = Literal["auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    path: str = "smollm2-135m"
    "a name from `rlc models`, a local folder, a GGUF file or a hub id"
    critic_path: str | None = None
    "trunk of the critic; the actor's model when not set"
    tokenizer: str | None = None
    "folder or hub id; the model's own when not set"
    chat_template: str | None = None
    "`plain`, or a file with a Jinja template; the tokenizer's own when not set"
    trust_remote_code: bool = False
    "let the model's folder run Python code of its own"
    lora_rank: int = 0
    "0 trains all weights; above 0 trains adapters and uses the base as the reference"
    lora_alpha: float = 16.0
    "scale of the adapters: alpha / rank"
    lora_dropout: float = 0.0
    lora_targets: tuple[str, ...] = ("all-linear",)
    "module names that get an adapter"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    train_files: tuple[str, ...] = ("gsm8k",)
    "`gsm8k` (shipped), `arithmetic` (generated), or paths, patterns and folders of .parquet, .jsonl, .json, .csv"
    val_files: tuple[str, ...] = ("gsm8k",)
    "held-out data, in the same forms; empty for none"
    prompt_key: str = "prompt"
    "column with the chat messages or the prompt text; `extra_info.question` reaches into a struct"
    response_key: str | None = None
    "column with the response to imitate or to judge; told by the form of the data when not set, as all below"
    chosen_key: str | None = None
    "column with the better response"
    rejected_key: str | None = None
    "column with the worse response"
    label_key: str | None = None
    "column that says whether a response is good"
    answer_key: str | None = None
    "column with the ground truth"
    bad_rows: Literal["error", "drop"] = "error"
    "rows without a usable prompt or response: stop, or leave them out and say so"
    mixture_weights: tuple[float, ...] = ()
    "share of each of train_files in every batch; when empty all rows are one dataset"
    streaming: bool | Auto = "auto"
    "read train_files in pieces, in bounded memory; `auto`: when their rows would fill a quarter of the memory"
    max_prompt_length: int = 512
    "tokens"
    max_response_length: int = 256
    "tokens"
    overlong_prompts: Literal["filter", "error", "left", "right", "middle"] = "filter"
    "drop rows over max_prompt_length, stop, or cut on that side"
    max_train_samples: int | None = None
    max_val_samples: int | None = None
    shuffle: bool = True
    seed: int = 1
    "of the order of the rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    functions: tuple[str, ...] = ("auto",)
    "`auto` (by the row's data_source), built-in names, or `file.py:function`; summed with the weights"
    weights: tuple[float, ...] = ()
    "one per function; all 1 when empty"
    function_arguments: dict[str, str] = field(default_factory=dict)
    "extra keyword arguments of the functions that take them"
    sources: dict[str, str] = field(default_factory=dict)
    "data_source (or a pattern with `*`): the built-in name or `file.py:function` that `auto` takes for it"
    model: str | None = None
    "a learned reward beside the functions: folder or hub id of a sequence classification model with one output"
    model_weight: float = 1.0
    "of the learned reward in the sum"
    overlong_buffer: int = 0
    "tokens before data.max_response_length over which a penalty grows from 0 to overlong_penalty; 0 is no penalty"
    overlong_penalty: float = 1.0
    num_processes: int = 1
    "of each function that runs outside this process; the responses of a step are dealt out among them"
    timeout_seconds: float = 60.0
    "per function and response"
    on_error: Literal["stop", "zero", "skip"] = "stop"
    "when a function fails, times out or returns None: stop the run, score 0, or leave the row out of the update"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostConfig:
    """What `ppo_lagrangian` holds below a limit. Time limits and what happens on a failure are those of `reward`."""

    functions: tuple[str, ...] = ()
    "built-in names or `file.py:function`; summed with the weights"
    weights: tuple[float, ...] = ()
    "one per function; all 1 when empty"
    function_arguments: dict[str, str] = field(default_factory=dict)
    "extra keyword arguments of the functions that take them"
    model: str | None = None
    "a learned cost beside the functions: folder or hub id of a sequence classification model with one output"
    model_weight: float = 1.0
    "of the learned cost in the sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmConfig:
    name: AlgorithmName = "ppo"
    "how rewards become advantages; some names also set others of these, unless they are given"
    gamma: float = 1.0
    "discount of later rewards"
    gae_lambda: float = 1.0
    whiten_advantages: bool = True
    "with a critic: zero mean, unit variance over the batch's response tokens"
    normalize_by_std: bool = True
    "GRPO: divide by the group's standard deviation"
    group_size: int = 1
    "responses per prompt"
    reward_parts: tuple[str, ...] = ()
    "`gdpo`: the parts that are compared one by one, functions or numbers in their dicts; all functions when empty"
    reward_part_weights: tuple[float, ...] = ()
    "one per part; those of `reward.weights` when empty, 1 for other numbers"
    dynamic_sampling: bool = False
    "replace prompts whose responses all get the same reward by the next ones, which then come sooner"
    max_sampling_rounds: int = 10
    "with dynamic_sampling: after so many a step learns from the prompts that it has"
    policy_loss: PolicyLossName = "auto"
    "what the actor minimizes; `auto` is `ppo_clip`, and `gpg` for the algorithm of that name"
    clip_low: float = 0.2
    "how far below 1 the ratio to the old policy may pay off; for `dppo_*` the bound on the divergence"
    clip_high: float = 0.2
    "how far above 1"
    clip_dual: float | None = 3.0
    "bound on the loss of negative advantages (dual clip), for `dppo_*` on the ratio; none switches it off"
    clip_value: float | None = 0.5
    "value clipping of the critic; none switches it off"
    sapo_tau_positive: float = 1.0
    "`sapo`: how fast the gradient fades as the ratio leaves 1, for positive advantages"
    sapo_tau_negative: float = 1.05
    "and for negative ones"
    dro_beta: float = 0.1
    "`dro`: weight of the squared distance to the old policy"
    clip_cov_fraction: float = 0.0002
    "`clip_cov`: share of a mini-batch's tokens that is left out"
    clip_cov_low: float = 1.0
    "`clip_cov`: they have a covariance of advantage and log-probability above this"
    clip_cov_high: float = 5.0
    "`clip_cov`: and below this"
    kl_cov_fraction: float = 0.0002
    "`kl_cov`: share of a mini-batch's tokens, those of largest covariance, that is tied to the old policy"
    kl_cov_coef: float = 0.1
    "`kl_cov`: weight of that tie"
    entropy_coef: float = 0.0
    loss_aggregation: Literal[
        "auto", "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = "auto"
    "how token losses become one; `auto` is `seq-mean-token-mean` for `gspo`, `sapo`, `geo_mean`, else `token-mean`"
    kl_in_reward: KLKind = "none"
    "estimator of the per-token KL penalty subtracted from the reward"
    kl_coef: float = 0.001
    "coefficient of the KL in the reward"
    kl_controller: Literal["fixed", "adaptive"] = "fixed"
    kl_target: float = 0.1
    kl_horizon: int = 10_000
    kl_loss: KLKind = "none"
    "estimator of a KL term in the actor's loss"
    kl_loss_coef: float = 0.001
    num_epochs: int = 1
    "passes over a batch"
    critic_warmup_steps: int = 0
    "steps in which only the critic learns"
    cost_limit: float = 0.0
    "`ppo_lagrangian`: mean cost of a response that is allowed"
    lagrange_lr: float = 0.1
    "learning rate of the price of the cost"
    lagrange_init: float = 1.0
    "price at the start"
    lagrange_max: float = 5.0
    "highest price"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyConfig:
    """For tokens that another policy sampled: one of other rounding, or older weights."""

    importance: Literal["none", "token", "sequence"] = "none"
    "weigh losses by the ratio of the trainer's to the sampler's probability, of each token or of its whole response"
    truncate: float | None = None
    "no weight above this"
    band: tuple[float, float] | None = None
    "weights outside it are 0"
    normalize: bool = False
    "divide the weights by their mean over the batch"
    reject: tuple[str, ...] = ()
    "train on no token that one of these rules leaves out: `token_k1:0.8_1.25`, `seq_mean_k3:0.02` …"
    bypass: bool = False
    "the sampler's log-probabilities are the old ones; saves the pass that computes the trainer's"
    vtrace: bool = False
    "with a critic: V-trace returns and advantages in place of GAE"
    vtrace_rho: float = 1.0
    "the most that a ratio of probabilities counts in the error of its own token"
    vtrace_c: float = 1.0
    "and in what later tokens pass on to it"


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedConfig:
    """For `algorithm.name=sft`."""

    loss_on: Literal["response", "all"] = "response"
    "the tokens that are learned: those of the assistant, or all but the first"
    packing: bool = False
    "several rows in one sequence, each blind to the others: the same loss without padding"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceConfig:
    """For `algorithm.name` dpo, kto and reward_model."""

    loss: Literal["sigmoid", "ipo", "hinge"] = "sigmoid"
    "`dpo`: of the margin between the two responses"
    beta: float = 0.1
    "how dear it is to leave the reference: the reward is beta times the log-ratio to it"
    label_smoothing: float = 0.0
    "`dpo` with `sigmoid`: share of pairs that may be the wrong way round"
    length_normalized: bool = False
    "`dpo`: divide each log-ratio by its number of tokens"
    reference_free: bool = False
    "`dpo`: leave the reference out"
    desirable_weight: float = 1.0
    "`kto`: of the losses of good responses"
    undesirable_weight: float = 1.0
    "and of the others"
    margin: float = 0.0
    "`reward_model`: by how much the better response should lead, where its row does not say"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    engine: Literal["auto", "native", "transformers", "vllm"] = "auto"
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    "0 keeps all tokens"
    min_p: float = 0.0
    "keeps tokens at least so likely compared with the most likely one"
    stop_strings: tuple[str, ...] = ()
    "a response also ends with the token that completes any of these in its text"
    max_num_seqs: int | None = None
    "responses generated at once; planned when not set"
    max_num_batched_tokens: int | None = None
    "prompt tokens in one prefill; planned when not set"
    max_model_len: int | None = None
    "tokens of the longest sequence, prompt and response; the sum of `data`'s two limits when not set"
    gpu_memory_utilization: float | None = None
    "share of the device's total memory the engine may hold; planned when not set"
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    name: Literal["adamw", "adamw8bit"] = "adamw"
    actor_lr: float = 1e-6
    critic_lr: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    "optimizer steps (mini-batches)"
    min_lr_fraction: float = 0.0
    "of the full learning rate at the end of a schedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    batch_size: int = 32
    "prompts per step"
    mini_batch_size: int = 32
    "prompts per optimizer step; follows batch_size when only that is given"
    num_steps: int | None = None
    "stop after so many steps; otherwise after num_epochs"
    num_epochs: int = 1
    "passes over the training data"
    max_seconds: float | None = None
    "stop, with a checkpoint, at the first step boundary after so long"
    output_dir: str = "runs/default"
    resume: str = "auto"
    "`auto` (the newest complete checkpoint of output_dir), `never`, or a checkpoint folder"
    save_every: int = 10
    "steps between checkpoints; 0 saves only at the end and on an interrupt"
    keep_checkpoints: int = 2
    validate_every: int = 0
    "steps between validations; 0 validates only before and after"
    validate_before: bool = True
    validate_after: bool = True
    validation_temperature: float = 0.0
    "0 is greedy"
    num_sample_generations: int = 4
    "responses written to samples.jsonl each step"
    loggers: tuple[str, ...] = ("console", "jsonl", "tensorboard")
    "of console, jsonl, tensorboard, wandb"
    project: str = "rl_compat"
    experiment: str | None = None
    "name in the trackers; the output folder's name when not set"
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """Explicit settings beat the profile; what cannot work on the hardware is refused with the reason."""

    profile: str = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    num_devices: int = 1
    compute_dtype: Literal["auto", "fp32", "fp16", "bf16"] = "auto"
    "what training multiplies in"
    rollout_dtype: Literal["auto", "fp32", "fp16", "bf16"] = "auto"
    "what generation multiplies in"
    frozen_storage_dtype: Literal["auto", "fp32", "fp16", "bf16"] = "auto"
    "what weights that are not trained are kept in"
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    gradient_checkpointing: bool | Auto = "auto"
    offload_optimizer: bool | Auto = "auto"
    "optimizer states in host memory, updated there"
    offload_idle_models: bool | Auto = "auto"
    "weights in host memory while a role waits for its turn"
    micro_batch_size: int | Auto = "auto"
    "most sequences in one forward and backward"
    max_tokens_per_micro_batch: int | Auto = "auto"
    "most tokens, padding included, in one forward and backward"
    logprob_chunk_tokens: int | Auto = "auto"
    "response tokens whose logits exist at once"
    quantization: Literal["none", "int8", "nf4"] = "none"
    "of frozen base weights under LoRA"
    memory_fraction: float = 0.9
    "of the free memory that a plan may fill"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    cost: CostConfig = field(default_factory=CostConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    off_policy: OffPolicyConfig = field(default_factory=OffPolicyConfig)
    supervised: SupervisedConfig = field(default_factory=SupervisedConfig)
    preference: PreferenceConfig = field(default_factory=PreferenceConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
