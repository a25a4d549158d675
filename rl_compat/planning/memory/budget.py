"""Peak bytes on the device in each phase of a step, item by item.

A phase holds the weights of every role that is not sent away, optimizer states, what the rollout engine keeps, and what
its own work needs. Three moments of an update compete for the same room: the logits of a chunk, the backward pass of
one block, and the gradient of the embedding; only the largest counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rl_compat.capability.precision import DTYPE_BYTES
from rl_compat.capability.quantization import WEIGHT_BYTES
from rl_compat.planning.memory import activations
from rl_compat.planning.memory.activations import FP32_BYTES, Arithmetic
from rl_compat.planning.memory.request import CRITIC_ROLES, TRAINED_ROLES, Levers, MemoryRequest, Sizes
from rl_compat.planning.memory.vllm import vllm_asleep_bytes, vllm_bytes, vllm_working_bytes
from rl_compat.planning.types import PhaseBudget
from rl_compat.units import MIB

HOST_BYTES_PER_OFFLOADED_PARAMETER = 12
"two moments and the master weight in fp32"
HOST_GRADIENT_BYTES = 512 * MIB
"gradients on their way to an offloaded optimizer: a bucket and the largest matrix"
CACHE_STEP = 128
"the rollout cache holds a multiple of so many tokens a sequence"
VALUES_PHASE = {"critic": "values", "cost_critic": "cost_values"}
CAST_NUMBERS = 2**23
"of weights kept in half precision that the native engine casts at once"
MASK_BYTES = 13
"per query and key of a mask: the distance, whether it is seen, and the additive mask"


def phase_budgets(request: MemoryRequest, levers: Levers, sizes: Sizes) -> tuple[PhaseBudget, ...]:
    """One budget for each phase that the algorithm has, in the order of a step."""
    phases = _generating(request, levers, sizes) if request.generates else _offline(request, levers, sizes)
    return tuple(
        PhaseBudget(phase=phase, items=_with_slack(request, _resident(request, levers, sizes, phase, role) | items))
        for phase, (role, items) in phases.items()
    )


def _offline(request: MemoryRequest, levers: Levers, sizes: Sizes) -> dict[str, tuple[str, dict[str, int]]]:
    """Phase to role and items, of training on given responses: measuring them, also as the reference, and learning."""
    measuring = _forward_items if request.scores else _logprob_items
    measured = ("actor", measuring(request, levers, sizes, role="actor"))
    phases = {"reference": measured} if request.reference_pass else {}
    return phases | {
        "evaluation": measured,
        "actor_update": ("actor", _update_items(request, levers, sizes, role="actor")),
    }


def _generating(request: MemoryRequest, levers: Levers, sizes: Sizes) -> dict[str, tuple[str, dict[str, int]]]:
    """Phase to role and items, of reinforcement learning."""
    phases = {"rollout": ("actor", _rollout_items(request, levers, sizes))}
    if request.reward is not None:
        phases["reward"] = ("reward", _forward_items(request, levers, sizes, role="reward"))
    if request.cost is not None:
        phases["cost"] = ("cost", _forward_items(request, levers, sizes, role="cost"))
    phases["logprobs"] = ("actor", _logprob_items(request, levers, sizes))
    if request.reference_pass:
        role = "reference" if request.has_reference else "actor"
        phases["reference"] = (role, _logprob_items(request, levers, sizes, role=role))
    critics = [role for role in CRITIC_ROLES if role in request.roles]
    for role in critics:
        phases[VALUES_PHASE[role]] = (role, _forward_items(request, levers, sizes, role=role))
    for role in critics:
        phases[f"{role}_update"] = (role, _update_items(request, levers, sizes, role=role))
    phases["actor_update"] = ("actor", _update_items(request, levers, sizes, role="actor"))
    return phases


def weights_bytes(request: MemoryRequest, levers: Levers, role: str) -> int:
    """Of one role as it is kept: trained weights in fp32, frozen ones in their storage dtype or quantized."""
    shape, trained = request.roles[role], request.trained_parameters(role)
    if role in TRAINED_ROLES and request.lora_rank == 0:
        return trained * FP32_BYTES
    frozen_bytes = DTYPE_BYTES[levers.frozen_dtype]
    linear_bytes = WEIGHT_BYTES.get(request.quantization, frozen_bytes) if role in TRAINED_ROLES else frozen_bytes
    whole = shape.trunk_parameters if request.is_headless(role) else shape.num_parameters
    embeddings = whole - shape.linear_parameters - shape.norm_parameters
    frozen = shape.linear_parameters * linear_bytes + embeddings * frozen_bytes + shape.norm_parameters * FP32_BYTES
    return int(frozen) + trained * FP32_BYTES


def host_bytes(request: MemoryRequest, levers: Levers) -> int:
    """Host memory that offload takes: optimizer states with their weights and gradients, and waiting weights."""
    total = 0
    for role in request.roles:
        if levers.offload_optimizer and request.trained_parameters(role):
            total += request.trained_parameters(role) * HOST_BYTES_PER_OFFLOADED_PARAMETER + HOST_GRADIENT_BYTES
        if levers.offload_idle:
            total += weights_bytes(request, levers, role)
    return total


def rollout_engine_bytes(request: MemoryRequest, levers: Levers, sizes: Sizes) -> dict[str, int]:
    """What the engine keeps from one rollout to the next: its copy of the weights, its cache and recorded graphs.

    A copy in half precision leaves embedding and output layer with the trainer.

    The `transformers` engine makes a cache for every call and keeps none.
    """
    if request.engine == "vllm":
        return vllm_bytes(request, sizes)
    items = {}
    if _copies_weights(request, levers):
        items["rollout weights"] = request.actor.linear_parameters * DTYPE_BYTES[request.rollout_dtype]
    if request.packs_linears:
        items["packed weights"] = request.actor.num_parameters * FP32_BYTES
    if request.engine == "native":
        items["kv cache"] = _cache_bytes(request, levers, sizes)
    if request.cuda_graphs:
        items["cuda graphs"] = _step_bytes(request, sizes) + _rollout_cast_bytes(request, levers)
    return items


def engine_needs_bytes(request: MemoryRequest, levers: Levers, sizes: Sizes) -> int:
    """What the engine must hold, where it might take more: vLLM fills the share that it is given."""
    return sum(rollout_engine_bytes(replace(request, vllm_share_bytes=None), levers, sizes).values())


def _cache_bytes(request: MemoryRequest, levers: Levers, sizes: Sizes) -> int:
    """Of all slots. Under autocast the keys of `transformers` stay fp32, the dtype of the rotary tables."""
    rounded = request.engine == "native" or _copies_weights(request, levers)
    length = -(-request.length // CACHE_STEP) * CACHE_STEP
    return activations.kv_cache_bytes(
        request.actor,
        num_seqs=sizes.max_num_seqs,
        length=length,
        element_bytes=DTYPE_BYTES[request.rollout_dtype] if rounded else FP32_BYTES,
    )


def _copies_weights(request: MemoryRequest, levers: Levers) -> bool:
    """Only fp32 weights are copied to be multiplied in half precision; others are shared."""
    half_kept = request.lora_rank > 0 and levers.frozen_dtype != "fp32"
    return request.rollout_dtype != "fp32" and not half_kept and request.quantization == "none"


def _rollout_cast_bytes(request: MemoryRequest, levers: Levers) -> int:
    """What weights under adapters become to be multiplied: quantized ones a matrix at a time in the dtype of the
    products, half-kept ones in fp32, the output layer among them, by the native engine a piece at a time."""
    if request.lora_rank == 0:
        return 0
    largest = max(linear.num_parameters for linear in request.actor.linears)
    quantized = largest * DTYPE_BYTES[request.rollout_dtype] if request.quantization != "none" else 0
    if levers.frozen_dtype == "fp32":
        return quantized
    stored = max(largest, request.actor.embedding_parameters)
    return max(quantized, FP32_BYTES * (min(stored, CAST_NUMBERS) if request.engine == "native" else stored))


def _step_bytes(request: MemoryRequest, sizes: Sizes) -> int:
    """One decode step: a token of every sequence through one block, and the logits it is drawn from."""
    copies = activations.SAMPLING_COPIES + (activations.SORTING_COPIES if request.sorts_vocabulary else 0)
    logits = activations.logits_bytes(request.actor.vocab_size, tokens=sizes.max_num_seqs, copies=copies)
    block = activations.forward_bytes(request.actor, request.arithmetic, tokens=sizes.max_num_seqs, length=1)
    return logits + block


def _rollout_items(request: MemoryRequest, levers: Levers, sizes: Sizes) -> dict[str, int]:
    if request.engine == "vllm":
        return vllm_bytes(request, sizes) | vllm_working_bytes(request, sizes)
    arithmetic = Arithmetic(
        compute_bytes=DTYPE_BYTES[request.rollout_dtype],
        repeat_kv=request.repeat_kv,
        eager_attention=request.eager_attention,
    )
    prompt = request.max_prompt_length
    at_once = request.engine != "native"
    tokens = sizes.max_num_seqs * prompt if at_once else sizes.max_prefill_tokens
    prefill = activations.forward_bytes(request.actor, arithmetic, tokens=tokens, length=prompt)
    working = {
        "prefill": prefill + tokens * prompt * MASK_BYTES,
        "last-token logits": _step_bytes(request, sizes),
        "weight copies": _rollout_cast_bytes(request, levers),
    }
    if at_once:
        cache = _cache_bytes(request, levers, sizes)
        working["kv cache"] = cache + cache // request.actor.num_layers
    return rollout_engine_bytes(request, levers, sizes) | working


def _logprob_items(request: MemoryRequest, levers: Levers, sizes: Sizes, *, role: str = "actor") -> dict[str, int]:
    copies = activations.LOGIT_COPIES
    chunk = _chunk_tokens(request, sizes)
    return _forward_items(request, levers, sizes, role=role) | {
        "logits": activations.logits_bytes(request.actor.vocab_size, tokens=chunk, copies=copies)
        + _head_copy_bytes(request, levers, role)
    }


def _forward_items(request: MemoryRequest, levers: Levers, sizes: Sizes, *, role: str) -> dict[str, int]:
    shape = request.roles[role]
    alive = activations.forward_bytes(shape, request.arithmetic, tokens=sizes.micro_batch_tokens, length=request.length)
    return {"activations": alive} | _mask_items(request, sizes) | _cast_items(request, levers, role)


def _mask_items(request: MemoryRequest, sizes: Sizes) -> dict[str, int]:
    """The mask of rows that share lines as long as the longest sequence."""
    return {"attention mask": sizes.micro_batch_tokens * request.length * MASK_BYTES} if request.packs else {}


def _update_items(request: MemoryRequest, levers: Levers, sizes: Sizes, *, role: str) -> dict[str, int]:
    shape, trained = request.roles[role], request.trained_parameters(role)
    saved = activations.saved_bytes(
        shape,
        request.arithmetic,
        tokens=sizes.micro_batch_tokens,
        length=request.length,
        checkpointing=levers.gradient_checkpointing,
    )
    has_logits = not request.is_headless(role)
    logits = _logits_moment(request, levers, sizes) if has_logits else 0
    later = max(_block_moment(request, levers, sizes, role), _embedding_moment(request, role) - saved)
    items = {"gradients": trained * FP32_BYTES, "activations": saved} | _mask_items(request, sizes)
    items |= {"logits": logits} if has_logits else {}
    return items | {"backward": max(0, later - logits)} | _cast_items(request, levers, role)


def _logits_moment(request: MemoryRequest, levers: Levers, sizes: Sizes) -> int:
    """The chunk's logits, the hidden states of response tokens with their gradient, and the head's gradient."""
    copies = activations.LOGIT_COPIES + (activations.ENTROPY_COPIES if request.with_entropy else 0)
    chunk = activations.logits_bytes(request.actor.vocab_size, tokens=_chunk_tokens(request, sizes), copies=copies)
    hidden = 2 * FP32_BYTES * request.actor.hidden_size * sizes.micro_batch_tokens
    head_gradient = 0
    if request.lora_rank == 0:
        product = DTYPE_BYTES[request.compute_dtype] if request.arithmetic.half else 0
        head_gradient = request.actor.embedding_parameters * (FP32_BYTES + product)
    return chunk + hidden + head_gradient + _head_copy_bytes(request, levers, "actor")


def _block_moment(request: MemoryRequest, levers: Levers, sizes: Sizes, role: str) -> int:
    """One block's backward, recomputed first when checkpointed, while a tied head's gradient waits."""
    shape, arithmetic, tokens = request.roles[role], request.arithmetic, sizes.micro_batch_tokens
    moment = activations.backward_layer_bytes(shape, arithmetic, tokens=tokens, length=request.length)
    if levers.gradient_checkpointing:
        moment += activations.saved_layer_bytes(shape, arithmetic, tokens=tokens, length=request.length)
    if not request.is_headless(role) and request.lora_rank == 0 and shape.tie_word_embeddings:
        moment += shape.embedding_parameters * FP32_BYTES
    return moment


def _embedding_moment(request: MemoryRequest, role: str) -> int:
    """The embedding's dense gradient, that of a tied head, and their sum; or the temporaries of an optimizer step."""
    shape = request.roles[role]
    if request.lora_rank > 0:
        return 0
    tied = not request.is_headless(role) and shape.tie_word_embeddings
    return shape.embedding_parameters * FP32_BYTES * (3 if tied else 2)


def _chunk_tokens(request: MemoryRequest, sizes: Sizes) -> int:
    """Response tokens whose logits exist at once: never more than a micro-batch has."""
    responses = max(1, sizes.micro_batch_tokens // request.length) * request.max_response_length
    return min(sizes.logprob_chunk_tokens, responses)


def _head_copy_bytes(request: MemoryRequest, levers: Levers, role: str) -> int:
    """The output matrix in the dtype of the products, when it is kept in another one."""
    kept = levers.frozen_dtype if role == "reference" or request.lora_rank > 0 else "fp32"
    if kept == request.compute_dtype:
        return 0
    return request.actor.embedding_parameters * DTYPE_BYTES[request.compute_dtype]


def _cast_items(request: MemoryRequest, levers: Levers, role: str) -> dict[str, int]:
    """Block weights in the compute dtype: copies of all trained ones under autocast, of a frozen or quantized one."""
    shape, width = request.roles[role], DTYPE_BYTES[request.compute_dtype]
    frozen = role not in TRAINED_ROLES or request.lora_rank > 0
    quantized = role in TRAINED_ROLES and request.quantization != "none"
    if (levers.frozen_dtype if frozen else "fp32") == request.compute_dtype and not quantized:
        return {}
    largest = max(linear.num_parameters for linear in shape.linears)
    return {"weight copies": width * (largest if frozen else shape.linear_parameters)}


def _resident(request: MemoryRequest, levers: Levers, sizes: Sizes, phase: str, active: str) -> dict[str, int]:
    items = {"context": request.context_bytes}
    for role in request.roles:
        if role == active or not levers.offload_idle:
            items[f"{role} weights"] = weights_bytes(request, levers, role)
        trained = request.trained_parameters(role)
        if trained and not levers.offload_optimizer:
            items[f"{role} optimizer"] = trained * request.optimizer_state_bytes
    if request.generates and phase != "rollout":
        items |= _waiting_engine_bytes(request, levers, sizes)
    return items


def _waiting_engine_bytes(request: MemoryRequest, levers: Levers, sizes: Sizes) -> dict[str, int]:
    if not levers.sleep_between:
        return rollout_engine_bytes(request, levers, sizes)
    return vllm_asleep_bytes(request) if request.engine == "vllm" else {}


def _with_slack(request: MemoryRequest, items: Mapping[str, int]) -> dict[str, int]:
    """The items and what the allocator reserves beyond them."""
    tensors = sum(items.values()) - request.context_bytes
    return {name: size for name, size in items.items() if size} | {
        "allocator slack": int(tensors * (request.allocator_factor - 1))
    }
