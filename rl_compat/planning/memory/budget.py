"""Peak bytes on the device in each phase of a step, item by item.

A phase holds the weights of every role that is not offloaded, the optimizer states, what the rollout engine keeps, and
what its own pass needs. Three moments of an update use the same memory one after the other: the logits of a chunk, the
backward pass of one block, and the gradient of the embedding; only the largest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from rl_compat.capability.optimizers import STATE_BYTES, WEIGHT_BYTES
from rl_compat.capability.precision import DTYPE_BYTES
from rl_compat.planning.memory import activations
from rl_compat.planning.memory.activations import FP32_BYTES, Arithmetic
from rl_compat.planning.memory.request import Levers, MemoryRequest, Sizes
from rl_compat.planning.memory.vllm import vllm_asleep_bytes, vllm_bytes, vllm_working_bytes
from rl_compat.planning.types import TRAINED_ROLES, PhaseBudget, Plan, RoleName
from rl_compat.planning.workload import Pass, Phase, Workload
from rl_compat.units import MIB

HOST_BYTES_PER_OFFLOADED_PARAMETER = 12
"two moments and the master weight in fp32"
HOST_GRADIENT_BYTES = 512 * MIB
"gradients on their way to an offloaded optimizer: a bucket and the largest matrix"
STORED_VERSIONS = 2.5
"of published weights, in host memory: a whole one with changes of half its size, and the next whole one"
CACHE_STEP = 128
"the KV cache of a sequence is a multiple of this many tokens"
GATHERED_LAYERS = 2
"layers whose weights are whole at once: one computes while the next is gathered"
CAST_NUMBERS = 2**23
"weights stored in half precision that the native engine casts at a time"
HANDOVER_BYTES = 64 * MIB
"through which shards are gathered for a rollout"
MASK_BYTES = 13
"per query and key of a mask: the distance, whether it is visible, and the additive mask"


def phase_budgets(request: MemoryRequest, levers: Levers, sizes: Sizes) -> tuple[PhaseBudget, ...]:
    """One budget for each phase of the workload, in the order of a step."""
    if generates_from_copy(request, levers):
        request = replace(request, workload=request.workload.with_own_rollout())
    return tuple(
        PhaseBudget(
            phase=phase.name,
            items=_with_slack(
                request,
                _resident(request, levers, sizes, phase) | ITEMS[phase.does](request, levers, sizes, phase.role),
            ),
        )
        for phase in request.workload.phases
    )


def generates_from_copy(request: MemoryRequest, levers: Levers) -> bool:
    """Whether the rollout needs a whole copy of the actor, whose own weights are sharded. vLLM always has its own."""
    sharded = shards_of(request.workload, levers, "actor") > 1
    generates = any(phase.does == "generate" and phase.role == "actor" for phase in request.workload.phases)
    return sharded and generates and request.engine != "vllm"


def shards_of(workload: Workload, levers: Levers, role: RoleName) -> int:
    """The devices that share the weights of a role. A copy that generates is whole."""
    if role == "rollout":
        return 1
    return levers.num_shards if role in TRAINED_ROLES or levers.shard_frozen else 1


def weights_bytes(request: MemoryRequest, levers: Levers, role: RoleName) -> int:
    """Of one role in storage on one device: trained weights in fp32, frozen ones in their dtype or quantized."""
    return _whole_weights_bytes(request, levers, role) // shards_of(request.workload, levers, role)


def _whole_weights_bytes(request: MemoryRequest, levers: Levers, role: RoleName) -> int:
    work = request.workload
    if role == "rollout":
        return 0 if request.engine == "vllm" else work.models[role].num_parameters * DTYPE_BYTES[request.rollout_dtype]
    shape, trained = work.models[role], work.trainable_parameters(role)
    if role in TRAINED_ROLES and not work.has_adapters(role):
        return trained * FP32_BYTES
    frozen_bytes = DTYPE_BYTES[levers.frozen_dtype]
    linear_bytes = WEIGHT_BYTES.get(request.quantization, frozen_bytes) if role in TRAINED_ROLES else frozen_bytes
    whole = shape.trunk_parameters if work.is_headless(role) else shape.num_parameters
    embeddings = whole - shape.linear_parameters - shape.norm_parameters
    frozen = shape.linear_parameters * linear_bytes + embeddings * frozen_bytes + shape.norm_parameters * FP32_BYTES
    return int(frozen) + trained * FP32_BYTES


def host_bytes(request: MemoryRequest, levers: Levers) -> int:
    """Host memory of copies and of offload: optimizer states with master weights and gradients, and idle weights."""
    total = host_copies_bytes(request, levers)
    for role in request.workload.models:
        if levers.offload_optimizer and request.workload.updates(role):
            parameters = request.workload.trainable_parameters(role) // shards_of(request.workload, levers, role)
            total += parameters * HOST_BYTES_PER_OFFLOADED_PARAMETER + HOST_GRADIENT_BYTES
        if levers.offload_idle_models:
            total += weights_bytes(request, levers, role)
    return total


def host_copies_bytes(request: MemoryRequest, levers: Levers) -> int:
    """Copies of weights in host memory: what a process publishes for another pool, and those that vLLM loads from."""
    work, width = request.workload, DTYPE_BYTES[request.rollout_dtype]
    total = 0
    if work.publishers:
        last = work.trainable_parameters("actor")
        kept = last + STORED_VERSIONS * work.models["actor"].num_parameters
        total += int(kept * width) // work.publishers
    owns = "rollout" in work.models or shards_of(work, levers, "actor") > 1
    if work.generates and request.engine == "vllm" and owns:
        total += request.actor.num_parameters * width
    return total


def rollout_engine_bytes(request: MemoryRequest, levers: Levers, sizes: Sizes) -> dict[str, int]:
    """What the engine keeps between rollouts: its copy of the weights, its KV cache and its CUDA graphs.

    A half-precision copy shares the embedding and output layer with the trainer. The `transformers` engine creates a
    cache in each call and keeps none.
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
    """The minimum memory of the engine: vLLM fills its whole fraction."""
    return sum(rollout_engine_bytes(replace(request, vllm_share_bytes=None), levers, sizes).values())


def _cache_bytes(request: MemoryRequest, levers: Levers, sizes: Sizes) -> int:
    """Of all slots. Under autocast the keys of `transformers` stay fp32, the dtype of the rotary tables."""
    rounded = request.engine == "native" or _copies_weights(request, levers) or "rollout" in request.workload.models
    length = -(-request.workload.length // CACHE_STEP) * CACHE_STEP
    return activations.kv_cache_bytes(
        request.actor,
        num_seqs=sizes.max_num_seqs,
        length=length,
        element_bytes=DTYPE_BYTES[request.rollout_dtype] if rounded else FP32_BYTES,
    )


def _copies_weights(request: MemoryRequest, levers: Levers) -> bool:
    """Only fp32 weights are copied to be multiplied in half precision; others are shared."""
    if "rollout" in request.workload.models:
        return False
    half_kept = request.workload.has_adapters("actor") and levers.frozen_dtype != "fp32"
    return request.rollout_dtype != "fp32" and not half_kept and request.quantization == "none"


def _rollout_cast_bytes(request: MemoryRequest, levers: Levers) -> int:
    """Temporary casts of weights under adapters: quantized ones a matrix at a time in the dtype of the
    products, half-kept ones in fp32, the output layer among them, by the native engine a piece at a time."""
    if not request.workload.has_adapters("actor") or "rollout" in request.workload.models:
        return 0
    largest = max(linear.num_parameters for linear in request.actor.linears)
    quantized = largest * DTYPE_BYTES[request.rollout_dtype] if request.quantization != "none" else 0
    if levers.frozen_dtype == "fp32":
        return quantized
    stored = max(largest, request.actor.embedding_parameters)
    return max(quantized, FP32_BYTES * (min(stored, CAST_NUMBERS) if request.engine == "native" else stored))


def _step_bytes(request: MemoryRequest, sizes: Sizes) -> int:
    """One decode step: a token of every sequence through one block, and the logits it is drawn from."""
    copies = activations.SAMPLING_COPIES + (activations.SORTING_COPIES if request.workload.sorts_vocabulary else 0)
    logits = activations.logits_bytes(request.actor.vocab_size, tokens=sizes.max_num_seqs, copies=copies)
    block = activations.forward_bytes(request.actor, request.arithmetic, tokens=sizes.max_num_seqs, length=1)
    return logits + block


def _rollout_items(request: MemoryRequest, levers: Levers, sizes: Sizes, role: RoleName) -> dict[str, int]:
    if request.engine == "vllm":
        working = vllm_working_bytes(request, sizes)
        return vllm_bytes(request, sizes) | working | _handover_items(request, levers, working)
    arithmetic = Arithmetic(
        compute_bytes=DTYPE_BYTES[request.rollout_dtype],
        repeat_kv=request.repeat_kv,
        eager_attention=request.eager_attention,
    )
    prompt = request.workload.max_prompt_length
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
    return rollout_engine_bytes(request, levers, sizes) | working | _handover_items(request, levers, working)


def _handover_items(request: MemoryRequest, levers: Levers, working: Mapping[str, int]) -> dict[str, int]:
    """What gathering the shards of an actor needs beyond the work after it: a buffer, and for vLLM a whole weight."""
    if shards_of(request.workload, levers, "actor") == 1:
        return {}
    largest = request.actor.embedding_parameters if request.engine == "vllm" else 0
    needed = HANDOVER_BYTES + largest * DTYPE_BYTES[request.rollout_dtype]
    return {"handover": max(0, needed - sum(working.values()))}


def _logprob_items(request: MemoryRequest, levers: Levers, sizes: Sizes, role: RoleName) -> dict[str, int]:
    copies = activations.LOGIT_COPIES
    chunk = _chunk_tokens(request, sizes)
    return _forward_items(request, levers, sizes, role) | {
        "logits": activations.logits_bytes(request.workload.models[role].vocab_size, tokens=chunk, copies=copies)
        + _head_copy_bytes(request, levers, role)
    }


def _forward_items(request: MemoryRequest, levers: Levers, sizes: Sizes, role: RoleName) -> dict[str, int]:
    shape = request.workload.models[role].divided(request.tensor_parallel)
    alive = activations.forward_bytes(
        shape, request.arithmetic, tokens=sizes.micro_batch_tokens, length=request.workload.length
    )
    items = {"activations": alive} | _mask_items(request, sizes) | _cast_items(request, levers, role)
    return items | _gathered_items(request, levers, role, "score")


def _gathered_items(request: MemoryRequest, levers: Levers, role: RoleName, does: Pass) -> dict[str, int]:
    """What sharded weights are gathered into: two layers, and the weights outside of layers until the pass ends.

    Weights that are kept whole between micro-batches are those of all layers. In an update, the gradients of two layers
    are whole, in the dtype of the products and in fp32 where they are summed over the devices; later, those outside of
    layers are.
    """
    if shards_of(request.workload, levers, role) == 1:
        return {}
    layers, ends = layer_parameters(request.workload, role), outer_parameters(request.workload, role)
    width, kept = gathered_widths(request, levers, role)
    own = layers // request.tensor_parallel
    layer = GATHERED_LAYERS * own // request.workload.models[role].num_layers
    items = {"gathered weights": (layer if levers.kept_whole == "none" else own) * width + ends * kept}
    if does == "update":
        items["gathered gradients"] = max(layer * (width + FP32_BYTES), ends * FP32_BYTES)
    return items


def layer_parameters(workload: Workload, role: RoleName) -> int:
    """Parameters in the layers of a role's model."""
    shape = workload.models[role]
    return shape.linear_parameters + shape.expert_parameters


def outer_parameters(workload: Workload, role: RoleName) -> int:
    """Parameters outside of the layers: embedding, output layer and norms."""
    shape = workload.models[role]
    whole = shape.trunk_parameters if workload.is_headless(role) else shape.num_parameters
    return whole - layer_parameters(workload, role)


def gathered_widths(request: MemoryRequest, levers: Levers, role: RoleName) -> tuple[int, int]:
    """Bytes of a gathered weight, inside and outside of layers: fp32 layers are gathered in the compute dtype."""
    trained = role in TRAINED_ROLES and not request.workload.has_adapters(role)
    kept = FP32_BYTES if trained else DTYPE_BYTES[levers.frozen_dtype]
    return min(kept, DTYPE_BYTES[request.compute_dtype]), kept


def _mask_items(request: MemoryRequest, sizes: Sizes) -> dict[str, int]:
    """The attention mask of packed rows, whose packs are as long as the longest sequence."""
    return (
        {"attention mask": sizes.micro_batch_tokens * request.workload.length * MASK_BYTES}
        if request.workload.packs
        else {}
    )


def _update_items(request: MemoryRequest, levers: Levers, sizes: Sizes, role: RoleName) -> dict[str, int]:
    shape = request.workload.models[role]
    saved = activations.saved_bytes(
        shape.divided(request.tensor_parallel),
        request.arithmetic,
        tokens=sizes.micro_batch_tokens,
        length=request.workload.length,
        checkpointing=levers.gradient_checkpointing,
    )
    has_logits = not request.workload.is_headless(role)
    logits = _logits_moment(request, levers, sizes, role) if has_logits else 0
    later = max(_block_moment(request, levers, sizes, role), _embedding_moment(request, role) - saved)
    items = {"gradients": _gradient_bytes(request, levers, role), "activations": saved} | _mask_items(request, sizes)
    items |= _gathered_items(request, levers, role, "update")
    items |= {"logits": logits} if has_logits else {}
    return items | {"backward": max(0, later - logits)} | _cast_items(request, levers, role)


def _gradient_bytes(request: MemoryRequest, levers: Levers, role: RoleName) -> int:
    """The sums over micro-batches: of a sharded model in parts, unless they are kept whole until the last one."""
    work, shards = request.workload, shards_of(request.workload, levers, role)
    trained = work.trainable_parameters(role)
    if shards == 1 or levers.kept_whole != "all":
        return trained * FP32_BYTES // shards
    layers, ends = layer_parameters(work, role), outer_parameters(work, role)
    in_layers = trained * layers // (layers + ends)
    return (in_layers // request.tensor_parallel + trained - in_layers) * FP32_BYTES


def _logits_moment(request: MemoryRequest, levers: Levers, sizes: Sizes, role: RoleName) -> int:
    """The chunk's logits, the hidden states of response tokens with their gradient, and the head's gradient."""
    shape = request.workload.models[role]
    copies = activations.LOGIT_COPIES + (activations.ENTROPY_COPIES if request.workload.entropy else 0)
    chunk = activations.logits_bytes(shape.vocab_size, tokens=_chunk_tokens(request, sizes), copies=copies)
    hidden = 2 * FP32_BYTES * shape.hidden_size * sizes.micro_batch_tokens
    head_gradient = 0
    if not request.workload.has_adapters(role):
        product = DTYPE_BYTES[request.compute_dtype] if request.arithmetic.half else 0
        head_gradient = shape.embedding_parameters * (FP32_BYTES + product)
    return chunk + hidden + head_gradient + _head_copy_bytes(request, levers, role)


def _block_moment(request: MemoryRequest, levers: Levers, sizes: Sizes, role: RoleName) -> int:
    """One block's backward, recomputed first when checkpointed, while a tied head's gradient waits."""
    shape, arithmetic, tokens = request.workload.models[role], request.arithmetic, sizes.micro_batch_tokens
    part = shape.divided(request.tensor_parallel)
    moment = activations.backward_layer_bytes(part, arithmetic, tokens=tokens, length=request.workload.length)
    if levers.gradient_checkpointing:
        moment += activations.saved_layer_bytes(part, arithmetic, tokens=tokens, length=request.workload.length)
    if not request.workload.is_headless(role) and not request.workload.has_adapters(role) and shape.tie_word_embeddings:
        moment += shape.embedding_parameters * FP32_BYTES
    return moment


def _embedding_moment(request: MemoryRequest, role: RoleName) -> int:
    """The embedding's dense gradient, that of a tied head, and their sum; or the temporaries of an optimizer step."""
    shape = request.workload.models[role]
    if request.workload.has_adapters(role):
        return 0
    tied = not request.workload.is_headless(role) and shape.tie_word_embeddings
    return shape.embedding_parameters * FP32_BYTES * (3 if tied else 2)


def _chunk_tokens(request: MemoryRequest, sizes: Sizes) -> int:
    """Response tokens whose logits exist at once: never more than a micro-batch has."""
    responses = max(1, sizes.micro_batch_tokens // request.workload.length) * request.workload.max_response_length
    return min(sizes.logprob_chunk_tokens, responses)


def _head_copy_bytes(request: MemoryRequest, levers: Levers, role: RoleName) -> int:
    """The output matrix in the dtype of the products, when it is kept in another one."""
    kept = levers.frozen_dtype if role not in TRAINED_ROLES or request.workload.has_adapters(role) else "fp32"
    if kept == request.compute_dtype:
        return 0
    return request.workload.models[role].embedding_parameters * DTYPE_BYTES[request.compute_dtype]


def _cast_items(request: MemoryRequest, levers: Levers, role: RoleName) -> dict[str, int]:
    """Block weights in the compute dtype: copies of all trained ones under autocast, of a frozen or quantized one.

    Sharded ones are gathered in the compute dtype.
    """
    shape, width = request.workload.models[role], DTYPE_BYTES[request.compute_dtype]
    frozen = role not in TRAINED_ROLES or request.workload.has_adapters(role)
    quantized = role in TRAINED_ROLES and request.quantization != "none"
    if (levers.frozen_dtype if frozen else "fp32") == request.compute_dtype and not quantized:
        return {}
    if not frozen and shards_of(request.workload, levers, role) > 1:
        return {}
    largest = max(linear.num_parameters for linear in shape.linears)
    return {"weight copies": width * (largest if frozen else shape.linear_parameters + shape.expert_parameters)}


def _resident(request: MemoryRequest, levers: Levers, sizes: Sizes, phase: Phase) -> dict[str, int]:
    """The resident items of a phase."""
    work = request.workload
    items = {"context": request.context_bytes}
    if request.on_cpu:
        items["copies of weights"] = host_copies_bytes(request, levers)
    for role in work.models:
        sleeps = levers.sleep_between if role == "rollout" else levers.offload_idle_models
        if role == phase.role or not sleeps:
            items[f"{role} weights"] = weights_bytes(request, levers, role)
        if work.updates(role) and not levers.offload_optimizer:
            states = work.trainable_parameters(role) * request.optimizer_state_bytes
            items[f"{role} optimizer"] = states // shards_of(work, levers, role)
    if work.generates and phase.does != "generate":
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


ITEMS: dict[Pass, Callable[[MemoryRequest, Levers, Sizes, RoleName], dict[str, int]]] = {
    "generate": _rollout_items,
    "logprobs": _logprob_items,
    "score": _forward_items,
    "update": _update_items,
}
"what a pass needs in addition to the resident items"


def checkpoint_bytes(workload: Workload, plan: Plan) -> int:
    """Size of a checkpoint: weights and optimizer states of everything that is trained."""
    return sum(
        workload.trainable_parameters(role) * (FP32_BYTES + STATE_BYTES[plan.roles[role].optimizer])
        for role in workload.models
        if workload.updates(role)
    )
