"""A Plan: everything resolved for one run on one machine. The compute tower obeys it and asks nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rl_compat.capability.types import Choice

SCHEMA_VERSION = 1

DType = Literal["fp32", "fp16", "bf16"]
RoleName = Literal["actor", "critic", "cost_critic", "reference", "reward", "cost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlan:
    """How one role keeps, multiplies and moves its weights."""

    role: RoleName
    device: str
    "`cpu`, `cuda:0` …"
    storage_dtype: DType
    "of the weights; trained weights are always fp32"
    compute_dtype: DType
    "of the matrix products: autocast when it differs from the storage of trained weights"
    attention: str
    "`eager`, `sdpa` or `flash_attention_2`"
    repeat_kv: bool = False
    "repeat grouped keys and values before SDPA, which otherwise falls to quadratic math attention"
    loss_scaling: bool = False
    "fp16 compute: scale the loss, skip steps that overflow"
    gradient_checkpointing: bool = False
    offload_optimizer: bool = False
    offload_idle: bool = False
    optimizer: str = "adamw"
    quantization: str = "none"
    micro_batch_size: int = 1
    "most sequences in one forward and backward"
    max_tokens_per_micro_batch: int | None = None
    "most tokens, padding included, in one forward and backward; None is no cap"
    logprob_chunk_tokens: int = 1024
    "response tokens whose logits exist at once"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    engine: str
    "`native`, `transformers` or `vllm`"
    compute_dtype: DType
    max_num_seqs: int
    "responses generated at once"
    max_prefill_tokens: int
    "prompt tokens, padding included, in one prefill forward"
    cuda_graphs: bool = False
    kernel_architecture: str | None = None
    "of the real device, such as `sm_61`, to compile the engine's own kernels for; None compiles for any device"
    packed_linears: bool = False
    "keep fp32 linear weights a second time, laid out for the CPU's matrix kernels: faster decoding on a CPU"
    gpu_memory_utilization: float | None = None
    "vLLM's share of the device"
    kv_cache_bytes: int | None = None
    "of vLLM's cache; None lets vLLM fill its share of the device"
    max_model_len: int | None = None
    "tokens of the longest sequence that vLLM is started for; None is what the model was made for"
    attention_backend: str | None = None
    "of vLLM, under its own name; None lets vLLM choose"
    sleep_between: bool = False
    "give the cache and graphs back after each rollout, because an update needs their room"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBudget:
    """Peak bytes of one phase on the device, item by item."""

    phase: str
    "`rollout`, `reward`, `cost`, `logprobs`, `reference`, `values`, `cost_values`, `critic_update` …"
    items: Mapping[str, int]
    "`actor weights`, `gradients`, `optimizer`, `activations`, `logits`, `kv cache` …: bytes"

    @property
    def total_bytes(self) -> int:
        return sum(self.items.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    profile: str
    device: str
    device_name: str
    roles: Mapping[str, RolePlan]
    "by role name; a role that the algorithm does not need is absent"
    rollout: RolloutPlan
    budgets: tuple[PhaseBudget, ...]
    memory_available_bytes: int
    "what the phases may fill: free memory times the fraction asked for"
    host_bytes: int = 0
    "planned use of host memory by offload (of everything when the device is the CPU)"
    choices: Mapping[str, Choice] = field(default_factory=dict)
    "by concern: `compute_dtype`, `attention`, `rollout_engine`, `optimizer`, `offload` …"
    notes: tuple[str, ...] = ()
    tf32: bool = False
    num_threads: int | None = None
    "torch's CPU threads; None leaves torch's default"
    memory_cap_bytes: int | None = None
    "hard limit set on the device's allocator, used when another card is emulated"
    sdpa_backends: tuple[str, ...] = ("flash", "efficient", "cudnn", "math")
    "kernels that scaled_dot_product_attention may use"
    emulated: str | None = None
    "name of the card that the device pretends to be"
    emulated_capability: tuple[int, int] | None = None
    "compute capability of that card; given whenever `emulated` is"
    schema: int = SCHEMA_VERSION

    @property
    def peak_bytes(self) -> int:
        return max((budget.total_bytes for budget in self.budgets), default=0)
