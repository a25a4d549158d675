"""What has to fit in memory, the levers that save memory, the sizes that use it, and the memory that there is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rl_compat.capability.precision import DTYPE_BYTES
from rl_compat.planning.memory.activations import Arithmetic
from rl_compat.planning.profile import Limits
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.types import DType, KeptWhole
from rl_compat.planning.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """A workload with the choices that decide how many bytes it takes."""

    workload: Workload
    compute_dtype: DType
    rollout_dtype: DType
    repeat_kv: bool
    eager_attention: bool
    optimizer_state_bytes: int
    "per trained parameter"
    quantization: str
    "of the frozen weights of trained roles"
    engine: str
    on_cpu: bool
    cuda_graphs: bool
    context_bytes: int
    allocator_factor: float
    tensor_parallel: int = 1
    "devices that compute each layer together"
    devices_per_engine: int = 1
    "devices that are one engine of vLLM"
    vllm_share_bytes: int | None = None
    "what vLLM may hold in all, where the user set its fraction of the device"

    @property
    def actor(self) -> ModelShape:
        """The model that generates."""
        return self.workload.main_model

    @property
    def part_of_actor(self) -> ModelShape:
        """What one device of an engine of vLLM computes, with at least one head of keys and values."""
        width = self.devices_per_engine
        return replace(
            self.actor,
            num_heads=self.actor.num_heads // width,
            num_kv_heads=max(1, self.actor.num_kv_heads // width),
            intermediate_size=self.actor.intermediate_size // width,
        )

    @property
    def packs_linears(self) -> bool:
        """The native engine decodes faster on a CPU with a packed copy of fp32 weights."""
        native = self.workload.generates and self.on_cpu and self.engine == "native"
        return native and self.rollout_dtype == "fp32" and self.quantization == "none"

    @property
    def arithmetic(self) -> Arithmetic:
        return Arithmetic(
            compute_bytes=DTYPE_BYTES[self.compute_dtype],
            repeat_kv=self.repeat_kv,
            eager_attention=self.eager_attention,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Levers:
    """Ways to save memory that cost time."""

    sleep_between: bool = False
    gradient_checkpointing: bool = False
    frozen_dtype: DType = "fp32"
    num_shards: int = 1
    "devices that share a copy of what is trained"
    shard_frozen: bool = False
    "the same for models that are not trained"
    offload_idle_models: bool = False
    offload_optimizer: bool = False
    kept_whole: KeptWhole = "none"
    "of sharded models: this one takes memory, and saves time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The values each lever may take, from no saving to most; one value where the user fixed it."""

    sleep_between: tuple[bool, ...] = (False, True)
    gradient_checkpointing: tuple[bool, ...] = (False, True)
    frozen_dtype: tuple[DType, ...] = ("fp32",)
    num_shards: tuple[int, ...] = (1,)
    shard_frozen: tuple[bool, ...] = (False,)
    offload_idle_models: tuple[bool, ...] = (False, True)
    offload_optimizer: tuple[bool, ...] = (False, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of micro-batches, prefills and rollouts."""

    micro_batch_tokens: int
    logprob_chunk_tokens: int
    max_num_seqs: int
    max_prefill_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Upper limits of useful sizes, and sizes that the user fixed."""

    num_sequences: int
    "maximum concurrent sequences, if they fit"
    mini_batch_sequences: int
    max_num_seqs: int | None = None
    max_prefill_tokens: int | None = None
    micro_batch_size: int | None = None
    micro_batch_tokens: int | None = None
    logprob_chunk_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Available memory."""

    available_bytes: int
    "of the device"
    host_bytes: int
    "of the host, by offload"
    engine_bytes: int | None = None
    "what the rollout engine may hold, where the user set its fraction of the device"
    sequences_wait: bool = False
    "sequences wait for a place in the engine's KV cache: one must fit, not all that the user allows"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProblem:
    """What has to fit, which levers and sizes may be changed for it, and the memory that there is."""

    request: MemoryRequest
    levels: Levels
    wanted: Wanted
    limits: Limits
    room: Room
