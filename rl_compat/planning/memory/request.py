"""What has to fit in memory, the levers that save memory, and the sizes that use it."""

from __future__ import annotations

from dataclasses import dataclass

from rl_compat.capability.precision import DTYPE_BYTES
from rl_compat.planning.memory.activations import Arithmetic
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.types import DType
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
    vllm_share_bytes: int | None = None
    "what vLLM may hold in all, where the user set its fraction of the device"

    @property
    def actor(self) -> ModelShape:
        """The model that generates."""
        return self.workload.main_model

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
    offload_idle: bool = False
    offload_optimizer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of micro-batches, prefills and rollouts."""

    micro_batch_tokens: int
    logprob_chunk_tokens: int
    max_num_seqs: int
    max_prefill_tokens: int
