"""Memory that vLLM holds on the trainer's device, awake and asleep."""

from __future__ import annotations

from rl_compat.capability.precision import DTYPE_BYTES
from rl_compat.planning.memory import activations
from rl_compat.planning.memory.activations import Arithmetic
from rl_compat.planning.memory.request import MemoryRequest, Sizes
from rl_compat.units import MIB

BLOCK_TOKENS = 128
"the KV cache of a sequence is a multiple of this many tokens: the largest block of a vLLM backend"
CONTEXT_BYTES = 512 * MIB
"communicators, workspaces and compiled kernels, on a GPU"
GRAPHS_BYTES = 768 * MIB
"captured graphs of all batch sizes up to `max_num_seqs`"


def vllm_bytes(request: MemoryRequest, sizes: Sizes) -> dict[str, int]:
    """Awake: a copy of all weights, the KV cache, and a fixed overhead."""
    items = {"rollout weights": vllm_weights_bytes(request), "kv cache": cache_bytes(request, sizes)}
    return items if request.on_cpu else items | {"vllm": overhead_bytes(request)}


def vllm_asleep_bytes(request: MemoryRequest) -> dict[str, int]:
    """Asleep: context and captured graphs; on a CPU, the embedding and the output layer."""
    if not request.on_cpu:
        return {"vllm": overhead_bytes(request)}
    kept = request.actor.embedding_parameters * (1 if request.actor.tie_word_embeddings else 2)
    return {"rollout weights": kept * DTYPE_BYTES[request.rollout_dtype] // request.devices_per_engine}


def overhead_bytes(request: MemoryRequest) -> int:
    """Overhead in addition to weights and KV cache."""
    if request.on_cpu:
        return 0
    return CONTEXT_BYTES + (GRAPHS_BYTES if request.cuda_graphs else 0)


def vllm_weights_bytes(request: MemoryRequest) -> int:
    """A device's part of a copy in the rollout dtype; on a CPU, embedding and output layer also in a packed layout."""
    packed = 2 * request.actor.embedding_parameters if request.on_cpu else 0
    whole = (request.actor.num_parameters + packed) * DTYPE_BYTES[request.rollout_dtype]
    return whole // request.devices_per_engine


def cache_bytes(request: MemoryRequest, sizes: Sizes) -> int:
    """What the user's fraction of the device leaves, or keys and values of every sequence in whole blocks."""
    if request.vllm_share_bytes is not None:
        return max(0, request.vllm_share_bytes - vllm_weights_bytes(request) - overhead_bytes(request))
    return needed_cache_bytes(request, num_seqs=sizes.max_num_seqs)


def needed_cache_bytes(request: MemoryRequest, *, num_seqs: int) -> int:
    """KV cache of `num_seqs` sequences of the full length, and one block that vLLM keeps empty."""
    blocks = -(-request.workload.length // BLOCK_TOKENS) * num_seqs + 1
    return activations.kv_cache_bytes(
        request.part_of_actor, num_seqs=blocks, length=BLOCK_TOKENS, element_bytes=DTYPE_BYTES[request.rollout_dtype]
    )


def vllm_working_bytes(request: MemoryRequest, sizes: Sizes) -> dict[str, int]:
    """While generating: one forward over `max_num_batched_tokens` tokens, and the logits to sample from."""
    arithmetic = Arithmetic(compute_bytes=DTYPE_BYTES[request.rollout_dtype])
    tokens = max(sizes.max_prefill_tokens, sizes.max_num_seqs)
    copies = activations.SAMPLING_COPIES + (activations.SORTING_COPIES if request.workload.sorts_vocabulary else 0)
    return {
        "prefill": activations.forward_bytes(
            request.part_of_actor, arithmetic, tokens=tokens, length=request.workload.length
        ),
        "last-token logits": activations.logits_bytes(
            request.actor.vocab_size, tokens=sizes.max_num_seqs, copies=copies
        ),
    }
