"""A Plan: everything resolved for a workload on its devices. The compute tower reads it and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rl_compat.capability.choice import Choice
from rl_compat.config.rules.pools import MAIN_POOL

SCHEMA_VERSION = 2

DType = Literal["fp32", "fp16", "bf16"]
RoleName = Literal["actor", "rollout", "critic", "cost_critic", "reference", "reward", "cost"]
"`rollout` is a copy of the actor's weights that generates, where the actor's own cannot"
CRITIC_ROLES: tuple[RoleName, ...] = ("critic", "cost_critic")
KeptWhole = Literal["none", "weights", "all"]
"of a model that ranks share, between the micro-batches of a pass; `all` is weights and gradients"
TRAINED_ROLES: tuple[RoleName, ...] = ("actor", *CRITIC_ROLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlan:
    """How one role stores, computes with and offloads its weights."""

    role: RoleName
    pool: str = MAIN_POOL
    device: str
    "`cpu`, or `cuda:0` …; in a pool of several devices, whose processes see one GPU each, `cuda:0`"
    storage_dtype: DType
    "of the weights; trained weights are always fp32"
    compute_dtype: DType
    "of the matrix products: autocast where it differs from the storage dtype of trained weights"
    attention: str
    "`eager`, `sdpa` or `flash_attention_2`"
    repeat_kv: bool = False
    "repeat grouped keys and values before SDPA, which otherwise falls back to quadratic math attention"
    loss_scaling: bool = False
    "fp16 compute: scale the loss, skip optimizer steps that overflow"
    gradient_checkpointing: bool = False
    offload_optimizer: bool = False
    offload_idle: bool = False
    optimizer: str = "adamw"
    quantization: str = "none"
    num_shards: int = 1
    "ranks that share one copy of the weights, gradients and optimizer states; 1 keeps a whole copy on each rank"
    kept_whole: KeptWhole = "none"
    "what each of these ranks gathers once for all micro-batches, or exchanges once for all of them"
    tensor_parallel: int = 1
    "of these, ranks that compute each layer together on the same rows, each with a part of its weights"
    micro_batch_size: int = 1
    "maximum sequences in one forward and backward"
    max_tokens_per_micro_batch: int | None = None
    "maximum tokens, padding included, in one forward and backward; None is unlimited"
    logprob_chunk_tokens: int = 1024
    "response tokens whose logits exist at once"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """How responses are generated."""

    pool: str = MAIN_POOL
    engine: str
    "`native`, `transformers` or `vllm`"
    compute_dtype: DType
    max_num_seqs: int
    "concurrent sequences"
    max_prefill_tokens: int
    "prompt tokens, padding included, in one forward of the prefill"
    cuda_graphs: bool = False
    kernel_architecture: str | None = None
    "of the real device, such as `sm_61`, that the engine compiles its kernels for; None compiles for any device"
    packed_linears: bool = False
    "keep a second copy of fp32 linear weights in the layout of the CPU's matrix kernels: faster decoding on a CPU"
    gpu_memory_utilization: float | None = None
    "fraction of the device that vLLM may use"
    kv_cache_bytes: int | None = None
    "of vLLM's KV cache; None lets vLLM fill its fraction of the device"
    max_model_len: int | None = None
    "longest sequence, in tokens, that vLLM accepts; None is the model's own limit"
    attention_backend: str | None = None
    "of vLLM, by its own name; None lets vLLM choose"
    sleep_between: bool = False
    "free the KV cache and graphs after each rollout, because an update needs the memory"
    tensor_parallel: int = 1
    "neighbouring devices that are one engine, and compute each layer together"


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
class Transfer:
    """Bytes that the devices of a pool exchange in one step."""

    phase: str
    name: str
    "`gradients`, `weights`, `activations`, `sums of replicas` or `handover`"
    num_bytes: int
    "that each device sends or receives"
    seconds: float | None
    "estimated; None if the rate of the link is unknown"
    link: str
    "what they go over, its rate, and where that is from"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """One set of devices: what was decided for it, how it is laid out, and what each phase on it needs."""

    devices: tuple[str, ...]
    "of each node, one for every process: `cuda:0`, `cuda:1` …, or `cpu` as often as there are processes"
    num_nodes: int = 1
    "machines that each have these devices"
    nodes: tuple[int, ...] = (0,)
    "their positions in the cluster that is planned for"
    device_name: str
    profile: str
    choices: Mapping[str, Choice] = field(default_factory=dict)
    "by concern: `compute_dtype`, `attention`, `rollout_engine`, `optimizer`, `offload_optimizer` …"
    budgets: tuple[PhaseBudget, ...]
    "of one device, in the order of a step"
    memory_available_bytes: int
    "that the phases may fill on each device: free memory times `plan.memory_fraction`"
    host_bytes: int = 0
    "host memory of each process that offload and copies of weights take, or everything if it is the device's too"
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    "estimated time of each phase without transfers, by phase; empty where it is unknown and in a plan of one device"
    transfers: tuple[Transfer, ...] = ()
    "between devices in a step, at the longest lengths"
    notes: tuple[str, ...] = ()
    tf32: bool = False
    num_threads: int | None = None
    "torch's CPU threads in each process; None leaves torch's default"
    memory_cap_bytes: int | None = None
    "hard limit for the device's allocator, set where another card is emulated"
    sdpa_backends: tuple[str, ...] = ("flash", "efficient", "cudnn", "math")
    "kernels that scaled_dot_product_attention may use"
    emulated: str | None = None
    "name of the card that the device emulates"
    emulated_capability: tuple[int, int] | None = None
    "compute capability of that card; set whenever `emulated` is"

    @property
    def device(self) -> str:
        """The first device."""
        return self.devices[0]

    @property
    def num_ranks(self) -> int:
        """Processes on all nodes, one per device."""
        return len(self.devices) * self.num_nodes

    @property
    def peak_bytes(self) -> int:
        return max((budget.total_bytes for budget in self.budgets), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A workload on its pools. One device is a plan of one pool."""

    pools: Mapping[str, PoolPlan]
    "by name"
    roles: Mapping[str, RolePlan]
    "by role name; a role that the workload does not need is absent, and so is `rollout` where the actor generates"
    rollout: RolloutPlan | None
    "None where nothing is generated"
    schema: int = SCHEMA_VERSION

    def pool_of(self, role: RoleName) -> PoolPlan:
        return self.pools[self.roles[role].pool]

    @property
    def notes(self) -> tuple[str, ...]:
        """Of all pools, each once."""
        return tuple(dict.fromkeys(note for pool in self.pools.values() for note in pool.notes))
