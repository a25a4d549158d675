"""The settings of a run. Each field declares one setting: name, type, limits, default, and one sentence below it.

A nested dataclass is a group: `algorithm.clip_cov.fraction`, or the table `[algorithm.clip_cov]`. Nothing here depends
on the hardware, except `plan`, where `auto` leaves the choice to the planner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from rl_compat.algorithms.table import Aggregation, AlgorithmName, KLKind, PolicyLossName
from rl_compat.config.values import (
    BelowOne,
    Count,
    Fraction,
    Index,
    NotNegative,
    Positive,
    Range,
    Text,
    Texts,
    ZeroToOne,
)

Auto = Literal["auto"]
DtypeChoice = Literal["auto", "fp32", "fp16", "bf16"]
LoggerName = Literal["console", "jsonl", "tensorboard", "wandb"]
OptimizerName = Literal["adamw", "adamw8bit"]
Schedule = Literal["constant", "linear", "cosine"]
DPOLossName = Literal["sigmoid", "ipo", "hinge"]
ImportanceLevel = Literal["none", "token", "sequence"]
OnUpdate = Literal["continue", "wait", "abort"]
OnStale = Literal["wait", "drop"]
PriorityName = Literal["uniform", "advantage", "td_error", "kl", "age"]
PlacedRole = Literal["actor", "rollout", "critic", "cost_critic", "reference", "reward", "cost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The model that is trained, its tokenizer and its LoRA adapters."""

    path: Text = "smollm2-135m"
    "model to train: a name from `rlc models`, a local folder, a GGUF file or a hub id"
    critic_path: str | None = None
    "model that the critic starts from; `model.path` when not set"
    tokenizer: str | None = None
    "tokenizer folder or hub id; the model's own when not set"
    chat_template: str | None = None
    "`plain`, or a file with a Jinja template; the tokenizer's own when not set"
    trust_remote_code: bool = False
    "allow Python code from the model's folder to run"
    lora_rank: Index = 0
    "rank of the LoRA adapters; 0 trains all weights, above 0 the frozen base is also the reference"
    lora_alpha: float = 16.0
    "LoRA scale: adapters are multiplied by alpha / rank"
    lora_dropout: BelowOne = 0.0
    "dropout probability of the LoRA adapters' input; what it drops depends on the devices and the micro-batches"
    lora_targets: Texts = ("all-linear",)
    "names of the modules that get an adapter; `all-linear` is every linear layer except the output head"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Training and validation rows, their columns and their lengths."""

    train_files: Texts = ("gsm8k",)
    "`gsm8k` (included), `arithmetic` (generated), `owner/name:config@split` of the hub, or files, patterns and folders"
    val_files: tuple[str, ...] = ("gsm8k",)
    "validation data, in the same forms; empty for none"
    prompt_key: Text = "prompt"
    "column with the chat messages or the prompt text; `extra_info.question` reaches into a struct"
    response_key: str | None = None
    "column with the response; detected from the data when not set, like the other columns below"
    chosen_key: str | None = None
    "column with the preferred response"
    rejected_key: str | None = None
    "column with the rejected response"
    label_key: str | None = None
    "column that says whether a response is desirable"
    answer_key: str | None = None
    "column with the ground truth"
    bad_rows: Literal["error", "drop"] = "error"
    "what to do with rows without a usable prompt or response: stop, or drop them and report how many"
    mixture_weights: tuple[Positive, ...] = ()
    "share of each of train_files in every batch; when empty, all rows form one dataset"
    streaming: bool | Auto = "auto"
    "keep the rows of train_files on disk during the run; `auto` does so when they would fill a quarter of the memory"
    max_prompt_length: Count = 512
    "longest prompt, in tokens"
    max_response_length: Count = 256
    "longest response, in tokens; a response cut off there counts as finished, so no value is bootstrapped after it"
    overlong_prompts: Literal["filter", "error", "left", "right", "middle"] = "filter"
    "what to do with prompts over max_prompt_length: drop the row, stop, or truncate on that side"
    max_train_samples: Count | None = None
    "use at most this many training rows; all when not set"
    max_val_samples: Count | None = None
    "use at most this many validation rows; all when not set"
    shuffle: bool = True
    "shuffle the training rows in every epoch"
    seed: Index = 1
    "seed of the row order"
    on_change: Literal["error", "restart"] = "error"
    "what to do on resume when training rows changed: stop and name them, or start at the first epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """What scores the responses."""

    functions: tuple[str, ...] = ("auto",)
    "`auto` (by the row's data_source), built-in names, or `file.py:function`; the reward is their weighted sum"
    weights: tuple[float, ...] = ()
    "one per function; all 1 when empty"
    function_arguments: dict[str, str] = field(default_factory=dict)
    "extra keyword arguments, passed to each function that accepts them"
    sources: dict[str, str] = field(default_factory=dict)
    "data_source (or a pattern with `*`) to the built-in name or `file.py:function` that `auto` uses for it"
    model: str | None = None
    "reward model added to the functions: folder or hub id of a sequence classification model with one output"
    model_weight: float = 1.0
    "weight of the reward model in the sum"
    thinking: str = "auto"
    "thoughts, which hold no answer: `auto` knows the usual markers, `off` reads all, or `<open>,<close>`"
    overlong_buffer: Index = 0
    "tokens before data.max_response_length over which a penalty grows from 0 to overlong_penalty; 0 for no penalty"
    overlong_penalty: NotNegative = 1.0
    "penalty of a response that reaches data.max_response_length"
    num_processes: Count = 1
    "processes for each function that runs outside this process; the responses of a step are divided among them"
    timeout_seconds: Positive = 60.0
    "time limit per function and response"
    on_error: Literal["stop", "zero", "skip"] = "stop"
    "when a function fails, times out or returns None: stop the run, score 0, or leave the row out of the update"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostConfig:
    """The cost that `ppo_lagrangian` keeps below a limit. Timeouts and error handling are those of `reward`."""

    functions: tuple[str, ...] = ()
    "built-in names or `file.py:function`; the cost is their weighted sum"
    weights: tuple[float, ...] = ()
    "one per function; all 1 when empty"
    function_arguments: dict[str, str] = field(default_factory=dict)
    "extra keyword arguments, passed to each function that accepts them"
    model: str | None = None
    "cost model added to the functions: folder or hub id of a sequence classification model with one output"
    model_weight: float = 1.0
    "weight of the cost model in the sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class KLControllerConfig:
    """How `algorithm.kl_coef` changes during a run."""

    type: Literal["fixed", "adaptive"] = "fixed"
    "`adaptive` moves the coefficient so that the KL approaches the target"
    target: Positive = 0.1
    "KL per response token, in nats, that the adaptive controller aims for"
    horizon: Count = 10_000
    "responses over which the adaptive controller corrects the coefficient; larger is slower"


@dataclass(frozen=True, slots=True, kw_only=True)
class LagrangianConfig:
    """The constraint of `ppo_lagrangian`."""

    cost_limit: float = 0.0
    "largest mean cost of a response that is allowed"
    lr: NotNegative = 0.1
    "learning rate of the Lagrange multiplier"
    init: Positive = 1.0
    "Lagrange multiplier at the start"
    max: Positive = 5.0
    "upper bound of the Lagrange multiplier"


@dataclass(frozen=True, slots=True, kw_only=True)
class GDPOConfig:
    """The parts of the reward that `gdpo` normalizes separately."""

    parts: tuple[str, ...] = ()
    "reward functions, or keys of the dicts they return; all functions when empty"
    weights: tuple[float, ...] = ()
    "one per part; when empty, those of `reward.weights`, and 1 for keys of dicts"


@dataclass(frozen=True, slots=True, kw_only=True)
class SAPOConfig:
    """The policy loss `sapo`."""

    tau_positive: Positive = 1.0
    "temperature of the soft gate for positive advantages; larger makes the gradient fade faster as the ratio leaves 1"
    tau_negative: Positive = 1.05
    "the same for negative advantages"


@dataclass(frozen=True, slots=True, kw_only=True)
class DROConfig:
    """The policy loss `dro`."""

    beta: Positive = 0.1
    "weight of the squared log-ratio to the old policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCovConfig:
    """The policy loss `clip_cov`."""

    fraction: Fraction = 0.0002
    "fraction of a mini-batch's tokens that is left out of the loss"
    low: float = 1.0
    "tokens are chosen where the covariance of advantage and log-probability is above this"
    high: float = 5.0
    "and below this"


@dataclass(frozen=True, slots=True, kw_only=True)
class KLCovConfig:
    """The policy loss `kl_cov`."""

    fraction: Fraction = 0.0002
    "fraction of a mini-batch's tokens, those of largest covariance, that gets a KL penalty to the old policy"
    coef: NotNegative = 0.1
    "coefficient of that penalty"


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTConfig:
    """The algorithm `sft`."""

    loss_on: Literal["response", "all"] = "response"
    "tokens in the loss: those of the assistant, or all except the first"
    packing: bool = False
    "put several examples into one row without attention between them: the same loss without padding"


@dataclass(frozen=True, slots=True, kw_only=True)
class DPOConfig:
    """The algorithm `dpo`."""

    loss: DPOLossName = "sigmoid"
    "loss on the margin between the chosen and the rejected response"
    beta: Positive = 0.1
    "strength of the penalty for leaving the reference: the implicit reward is beta times the log-ratio to it"
    label_smoothing: Annotated[float, Range(ge=0, lt=0.5)] = 0.0
    "with `sigmoid`: assumed probability that a pair is labelled the wrong way round"
    length_normalized: bool = False
    "divide each log-ratio by the number of tokens of its response"
    reference_free: bool = False
    "train without a reference model"


@dataclass(frozen=True, slots=True, kw_only=True)
class KTOConfig:
    """The algorithm `kto`."""

    beta: Positive = 0.1
    "strength of the penalty for leaving the reference: the implicit reward is beta times the log-ratio to it"
    desirable_weight: NotNegative = 1.0
    "weight of the losses of desirable responses"
    undesirable_weight: NotNegative = 1.0
    "weight of the losses of undesirable responses"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelingConfig:
    """The algorithm `reward_model`."""

    margin: NotNegative = 0.0
    "how far the chosen response's reward should be above the rejected one's, where the row gives no margin"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmConfig:
    """How the model learns. Settings of a single algorithm or policy loss are in the group of its name."""

    name: AlgorithmName = "ppo"
    "how rewards become advantages; some algorithms change the defaults of other settings"
    gamma: ZeroToOne = 1.0
    "discount factor of later rewards, per token"
    gae_lambda: ZeroToOne = 1.0
    "lambda of generalized advantage estimation; 1 uses whole returns, smaller trusts the critic more"
    whiten_advantages: bool = True
    "with a critic: scale advantages to zero mean and unit variance over the batch's response tokens"
    normalize_by_std: bool = True
    "GRPO: divide by the group's standard deviation"
    group_size: Count = 1
    "responses per prompt; 8 where an algorithm compares them, unless set"
    dynamic_sampling: bool = False
    "replace prompts whose responses all get the same reward by the next prompts"
    max_sampling_rounds: Count = 10
    "with dynamic_sampling: after this many rounds a step uses the prompts it has"
    policy_loss: PolicyLossName | Auto = "auto"
    "loss of the actor; `auto` is `gpg` for the algorithm `gpg` and `ppo_clip` for all others"
    clip_low: Fraction = 0.2
    "clip range of the ratio to the old policy below 1; for `dppo_*` the bound on the divergence"
    clip_high: Positive = 0.2
    "clip range of the ratio above 1"
    clip_dual: Annotated[float, Range(gt=1)] | None = 3.0
    "bound on the loss of negative advantages (dual clip), for `dppo_*` on the ratio; `none` for no bound"
    clip_value: Positive | None = 0.5
    "clip range of the critic's values around the old ones; `none` for no clipping"
    entropy_coef: float = 0.0
    "coefficient of the entropy bonus in the actor's loss"
    loss_aggregation: Aggregation | Auto = "auto"
    "how token losses are averaged; `auto` is `seq-mean-token-mean` for `gspo`, `sapo`, `geo_mean`, else `token-mean`"
    kl_in_reward: KLKind | Literal["none"] = "none"
    "estimator of the per-token KL penalty subtracted from the reward; `+` adds the gradient of `k2`"
    kl_coef: NotNegative = 0.001
    "coefficient of the KL penalty in the reward"
    kl_loss: KLKind | Literal["none"] = "none"
    "estimator of a KL term in the actor's loss; `+` keeps the value and takes the gradient of `k2`"
    kl_loss_coef: NotNegative = 0.001
    "coefficient of the KL term in the actor's loss"
    num_epochs: Count = 1
    "optimization passes over each batch of responses"
    critic_warmup_steps: Index = 0
    "number of first steps in which only the critic is trained"
    kl_controller: KLControllerConfig = field(default_factory=KLControllerConfig)
    lagrangian: LagrangianConfig = field(default_factory=LagrangianConfig)
    gdpo: GDPOConfig = field(default_factory=GDPOConfig)
    sapo: SAPOConfig = field(default_factory=SAPOConfig)
    dro: DROConfig = field(default_factory=DROConfig)
    clip_cov: ClipCovConfig = field(default_factory=ClipCovConfig)
    kl_cov: KLCovConfig = field(default_factory=KLCovConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)
    dpo: DPOConfig = field(default_factory=DPOConfig)
    kto: KTOConfig = field(default_factory=KTOConfig)
    reward_model: RewardModelingConfig = field(default_factory=RewardModelingConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class VTraceConfig:
    """V-trace in place of GAE."""

    enabled: bool = False
    "with a critic: use V-trace returns and advantages"
    rho: Positive = 1.0
    "upper bound of the probability ratio in a token's own error"
    c: Positive = 1.0
    "upper bound of the ratio with which later tokens contribute"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyConfig:
    """For tokens sampled by another policy: an engine with different numerics, or stale weights."""

    importance: ImportanceLevel = "none"
    "weight losses by the ratio of the trainer's to the sampler's probability, per token or per response"
    truncate: Positive | None = None
    "upper bound of the importance weights"
    band: tuple[NotNegative, NotNegative] | None = None
    "importance weights outside this interval become 0"
    normalize: bool = False
    "divide the importance weights by their mean over the batch"
    reject: tuple[str, ...] = ()
    "rules that exclude tokens from the loss: `token_k1:0.8_1.25`, `seq_mean_k3:0.02` …"
    bypass: bool = False
    "use the sampler's log-probabilities as the old ones; saves the pass that recomputes them"
    vtrace: VTraceConfig = field(default_factory=VTraceConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """Which responses of earlier steps are trained on again, with `samples.reuse` of 2 or more."""

    draws: Positive | Auto = "auto"
    "earlier prompts in each step, as a fraction of trainer.batch_size; `auto` is reuse - 1, the most that lasts"
    capacity: Count = 1024
    "prompts in memory whose responses can be drawn"
    priority: PriorityName = "uniform"
    "what is drawn more often: large advantages or errors of the critic, small KL to the policy, or new responses"
    alpha: ZeroToOne = 0.6
    "how much the priority counts; 0 draws uniformly"
    beta: ZeroToOne = 0.4
    "how much importance weights make up for the priority; 1 does so fully"
    max_staleness: Index = 4
    "most steps between the weights that drew a response and those that train on it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesConfig:
    """How often responses are trained on, and the record of all responses."""

    reuse: Count | Auto = 1
    "most times that a response is trained on; `auto` is 2 while a step waits for generation more than half of its time"
    keep: bool = False
    "write all responses to parquet files in `replay/` of output_dir, for `rlc replay`, in place of samples.jsonl"
    keep_gib: Positive | None = None
    "most disk space of these files in GiB; the oldest steps are removed beyond it; no limit when not set"
    replay: ReplayConfig = field(default_factory=ReplayConfig)

    @property
    def most_uses(self) -> int:
        """Most times that a response is trained on."""
        return 2 if self.reuse == "auto" else self.reuse


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How tokens are sampled; a part of `rollout`."""

    temperature: Positive = 1.0
    "sampling temperature of the training responses"
    top_p: Fraction = 1.0
    "sample from the smallest set of tokens whose probabilities sum to this; 1 keeps all"
    top_k: Index = 0
    "sample from the most likely tokens only; 0 keeps all"
    min_p: BelowOne = 0.0
    "drop tokens less likely than this fraction of the most likely token's probability, before top_k and top_p"
    stop_strings: tuple[Text, ...] = ()
    "end a response with the token that completes one of these strings"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig(SamplingConfig):
    """How responses are generated."""

    engine: Literal["auto", "native", "transformers", "vllm"] = "auto"
    "engine that generates responses; `auto` picks the fastest that works on this hardware"
    tensor_parallel: Count = 1
    "devices of a node that are one engine of vLLM, each with a part of the heads and matrices"
    max_num_seqs: Count | None = None
    "concurrent sequences; planned when not set"
    max_num_batched_tokens: Count | None = None
    "prompt tokens in one prefill; planned when not set"
    max_model_len: Count | None = None
    "longest sequence, prompt and response, in tokens; the sum of the two limits of `data` when not set"
    gpu_memory_utilization: Fraction | None = None
    "fraction of the device's total memory that the engine may use; planned when not set"
    seed: Index = 1
    "seed of the sampling"
    on_update: OnUpdate = "continue"
    "whether unfinished responses `continue` with new weights, are waited for (`wait`), or begin again (`abort`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """How one role takes optimizer steps; a part of `optimizer`."""

    name: OptimizerName = "adamw"
    "`adamw`, or `adamw8bit` with 8-bit states (needs bitsandbytes)"
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    "decay rates of Adam's first and second moment"
    eps: Positive = 1e-8
    "term added to the denominator of Adam's update"
    weight_decay: NotNegative = 0.01
    "decoupled weight decay of parameters with two or more dimensions; norms and biases have none"
    max_grad_norm: NotNegative = 1.0
    "gradients with a larger norm are scaled down to it; 0 switches clipping off"
    schedule: Schedule = "constant"
    "how the learning rate changes after the warm-up"
    warmup_steps: Index = 0
    "optimizer steps (mini-batches) over which the learning rate rises from 0"
    min_lr_fraction: ZeroToOne = 0.0
    "fraction of the peak learning rate at the end of a schedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig(StepConfig):
    """Optimizers and learning rates."""

    actor_lr: NotNegative = 1e-6
    "peak learning rate of the actor, and of the model in `sft`, `dpo`, `kto` and `reward_model`"
    critic_lr: NotNegative = 1e-5
    "peak learning rate of the critic"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """Batches, steps, checkpoints, validation and logging."""

    batch_size: Count = 32
    "prompts per step"
    mini_batch_size: Count = 32
    "prompts per optimizer step; follows batch_size when only that is given"
    num_steps: Count | None = None
    "stop after this many steps; after num_epochs when not set"
    num_epochs: Count = 1
    "passes over the training data"
    max_seconds: Positive | None = None
    "write a checkpoint and stop at the first step boundary after this time"
    output_dir: Text = "runs/default"
    "folder of the run's checkpoints, metrics and logs"
    resume: str = "auto"
    "`auto` (the newest complete checkpoint of output_dir), `never`, or a checkpoint folder"
    save_every: Index = 10
    "steps between checkpoints; 0 saves only at the end and on an interrupt"
    keep_checkpoints: Count = 2
    "number of newest checkpoints to keep"
    validate_every: Index = 0
    "steps between validations; 0 validates only before and after training"
    validate_before: bool = True
    "validate before the first step"
    validate_after: bool = True
    "validate after the last step"
    validation_temperature: NotNegative = 0.0
    "sampling temperature of validation; 0 is greedy"
    num_sample_generations: Index = 4
    "responses written to samples.jsonl in each step"
    loggers: tuple[LoggerName, ...] = ("console", "jsonl", "tensorboard")
    "where metrics are written"
    project: str = "rl_compat"
    "project name in wandb"
    experiment: str | None = None
    "run name in the trackers; the name of output_dir when not set"
    seed: Index = 1
    "seed of new weights, dropout and the order of mini-batches"
    flow: Literal["sync", "async"] = "sync"
    "`async` generates the next steps while one is learned from"
    max_staleness: Index = 1
    "steps by which the weights that began a response are older, at most, than those that learn from it"
    on_stale: OnStale = "wait"
    "whether generation pauses at max_staleness (`wait`), or the oldest responses make way for newer ones (`drop`)"
    batch_tokens: Count | None = None
    "most tokens of a step, prompts included: a step then has fewer prompts than batch_size if responses are long"

    @property
    def draws_more(self) -> bool:
        """Whether the steps of a run use more or fewer prompts than batch_size of what is drawn."""
        return self.flow == "async" and (self.on_stale == "drop" or self.batch_tokens is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesConfig:
    """The devices of a pool, and choices of the planner; a part of `plan` and of each pool."""

    profile: str = "auto"
    "hardware profile, a name from `rlc profiles`; `auto` is the best match"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    "kind of device to run on"
    num_devices: Count = 1
    "number of GPUs to run on, in each node; on the CPU, the number of processes"
    num_nodes: Count = 1
    "number of machines to run on"
    num_shards: Count | Auto = "auto"
    "devices that share one copy of a model's weights, gradients and optimizer states; 1 keeps a copy on each"
    tensor_parallel: Count = 1
    "of these devices, those of a node that compute each layer together, each with a part of its heads and matrices"
    compute_dtype: DtypeChoice = "auto"
    "dtype of the matrix products in training"
    rollout_dtype: DtypeChoice = "auto"
    "dtype of the matrix products in generation"
    frozen_storage_dtype: DtypeChoice = "auto"
    "dtype in which weights that are not trained are stored"
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    "attention implementation of training"
    gradient_checkpointing: bool | Auto = "auto"
    "recompute activations in the backward pass in place of storing them"
    offload_optimizer: bool | Auto = "auto"
    "keep the optimizer states in host memory and update them there"
    offload_idle_models: bool | Auto = "auto"
    "keep the weights of a role in host memory while it is idle"
    micro_batch_size: Count | Auto = "auto"
    "most sequences in one forward and backward"
    max_tokens_per_micro_batch: Count | Auto = "auto"
    "most tokens, padding included, in one forward and backward"
    logprob_chunk_tokens: Count | Auto = "auto"
    "response tokens whose logits exist at the same time"
    quantization: Literal["none", "int8", "nf4"] = "none"
    "quantization of the frozen base weights under LoRA"
    memory_fraction: Fraction = 0.9
    "fraction of the free memory that a plan may use"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig(DevicesConfig):
    """The devices of the pool `main`, and choices of the planner; a value overrides the profile, or is refused."""

    address: str | None = None
    "address of the Ray cluster to run on; when not set, a run with several processes starts its own on this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig(DevicesConfig):
    """Devices of their own for some roles. `NAME` is any word; a pool also has the settings of `plan`."""

    roles: tuple[PlacedRole, ...] = ()
    "the roles that work there; `rollout` generates with a copy of the actor's weights"
    gpus: tuple[Index, ...] = ()
    "CUDA indices of the GPUs; when empty, the first `num_devices` that no other pool has"
    emulate: str | None = None
    "card that the devices emulate, such as `p40`"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """All sections."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    cost: CostConfig = field(default_factory=CostConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    off_policy: OffPolicyConfig = field(default_factory=OffPolicyConfig)
    samples: SamplesConfig = field(default_factory=SamplesConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    pools: Mapping[str, PoolConfig] = field(default_factory=dict)
    "by name"
