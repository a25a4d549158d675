"""What has to fit in memory: the request, the levers that save it, and the sizes that use it."""

from __future__ import annotations

from dataclasses import dataclass

from rl_compat.capability.precision import DTYPE_BYTES
from rl_compat.planning.memory.activations import Arithmetic
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.types import DType

CRITIC_ROLES = ("critic", "cost_critic")
TRAINED_ROLES = ("actor", *CRITIC_ROLES)
HEADLESS_ROLES = (*CRITIC_ROLES, "reward", "cost")
"one number in place of the output over the vocabulary"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """What has to be done, before any size is chosen."""

    actor: ModelShape
    critic: ModelShape | None
    has_reference: bool
    "a reference with weights of its own"
    reference_pass: bool
    "log-probabilities under a reference, with weights of its own or with the adapters off"
    lora_rank: int
    lora_targets: tuple[str, ...]
    quantization: str
    max_prompt_length: int
    max_response_length: int
    compute_dtype: DType
    rollout_dtype: DType
    repeat_kv: bool
    eager_attention: bool
    optimizer_state_bytes: int
    "per trained parameter"
    engine: str
    on_cpu: bool
    cuda_graphs: bool
    with_entropy: bool
    sorts_vocabulary: bool
    "top-k or top-p is on"
    context_bytes: int
    allocator_factor: float
    vllm_share_bytes: int | None = None
    "what vLLM may hold in all, when the user gave its share of the device"
    reward: ModelShape | None = None
    "of a learned reward"
    cost: ModelShape | None = None
    "of a learned cost"
    has_cost_critic: bool = False
    "a second critic, for the cost"
    generates: bool = True
    "False for training on responses that are there"
    compares: bool = False
    "two sequences are computed together"
    scores: bool = False
    "the actor gives one number for a sequence"
    packs: bool = False
    "rows share lines, so that attention needs a mask"

    @property
    def packs_linears(self) -> bool:
        """The native engine decodes faster on a CPU over a packed copy of fp32 weights."""
        native = self.generates and self.on_cpu and self.engine == "native"
        return native and self.rollout_dtype == "fp32" and self.quantization == "none"

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return self.max_prompt_length + self.max_response_length

    @property
    def roles(self) -> dict[str, ModelShape]:
        roles = {"actor": self.actor}
        if self.critic is not None:
            roles["critic"] = self.critic
            roles |= {"cost_critic": self.critic} if self.has_cost_critic else {}
        if self.has_reference:
            roles["reference"] = self.actor
        if self.reward is not None:
            roles["reward"] = self.reward
        if self.cost is not None:
            roles["cost"] = self.cost
        return roles

    @property
    def arithmetic(self) -> Arithmetic:
        return Arithmetic(
            compute_bytes=DTYPE_BYTES[self.compute_dtype],
            repeat_kv=self.repeat_kv,
            eager_attention=self.eager_attention,
        )

    def trained_parameters(self, role: str) -> int:
        """Parameters of a role that learn: all of them, adapters and value head, or none."""
        if role not in TRAINED_ROLES:
            return 0
        shape = self.roles[role]
        head = shape.hidden_size + 1 if self.is_headless(role) else 0
        if self.lora_rank > 0:
            return shape.lora_parameters(self.lora_rank, self.lora_targets) + head
        return (shape.trunk_parameters + head) if self.is_headless(role) else shape.num_parameters

    def is_headless(self, role: str) -> bool:
        """Whether a role has one number in place of the output over the vocabulary."""
        return role in HEADLESS_ROLES or (role == "actor" and self.scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Levers:
    """Ways of saving memory that cost time."""

    sleep_between: bool = False
    gradient_checkpointing: bool = False
    frozen_dtype: DType = "fp32"
    offload_idle: bool = False
    offload_optimizer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is done at once."""

    micro_batch_tokens: int
    logprob_chunk_tokens: int
    max_num_seqs: int
    max_prefill_tokens: int
