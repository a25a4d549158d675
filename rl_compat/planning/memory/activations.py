"""Bytes of activations, logits and key-value cache, from a model's dimensions.

Counts what autograd saves in one block: the residual stream and its normalised form before attention and before the
MLP, the inputs of the linear layers, queries, keys, values and output of fused attention, and the four tensors of the
gated MLP. Under autocast the residual stream and the norms stay in fp32, and every linear layer saves a half-precision
copy of its input.
"""

from __future__ import annotations

from dataclasses import dataclass

from rl_compat.planning.shapes.shape import ModelShape

FP32_BYTES = 4
LOGIT_COPIES = 3
"fp32 `[chunk, V]` tensors alive at once: the head's output, the tempered logits, their softmax or its gradient"
ENTROPY_COPIES = 3
"additional copies if the entropy is differentiated"
SAMPLING_COPIES = 3
SORTING_COPIES = 4
"additional copies if top-k or top-p sorts the vocabulary: values, indices (twice the width of fp32) and their sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """How a block is computed, as far as it affects saved tensors."""

    compute_bytes: int
    "4 for fp32, 2 for half precision under autocast"
    repeat_kv: bool = False
    eager_attention: bool = False

    @property
    def half(self) -> bool:
        return self.compute_bytes < FP32_BYTES


def saved_layer_bytes(shape: ModelShape, arithmetic: Arithmetic, *, tokens: int, length: int) -> int:
    """Bytes that one block saves for its backward pass."""
    hidden, query = shape.hidden_size, shape.query_width
    keys = query if arithmetic.repeat_kv or arithmetic.eager_attention else shape.kv_width
    norms = 2 * FP32_BYTES * hidden * shape.norms_per_layer
    if shape.query_key_norm:
        norms += 2 * FP32_BYTES * (query + shape.kv_width)
    fed = [linear for linear in shape.linears if linear.inputs == hidden and linear.name not in ("o_proj", "dense")]
    inputs = hidden * arithmetic.compute_bytes * (len(fed) if arithmetic.half else 2)
    attention = arithmetic.compute_bytes * (2 * query + 2 * keys)
    feed_forward = 4 * arithmetic.compute_bytes * shape.intermediate_size
    return tokens * (norms + inputs + attention + feed_forward) + _scores(shape, arithmetic, tokens, length)


def _scores(shape: ModelShape, arithmetic: Arithmetic, tokens: int, length: int) -> int:
    """Eager attention saves the softmax of all scores, in fp32 and in the compute dtype."""
    if not arithmetic.eager_attention:
        return 0
    width = FP32_BYTES + (arithmetic.compute_bytes if arithmetic.half else 0)
    return tokens * length * shape.num_heads * width


def backward_layer_bytes(shape: ModelShape, arithmetic: Arithmetic, *, tokens: int, length: int) -> int:
    """Gradients that exist only while one block's backward runs."""
    feed_forward = 3 * arithmetic.compute_bytes * shape.intermediate_size
    attention = 4 * arithmetic.compute_bytes * shape.query_width
    stream = 2 * FP32_BYTES * shape.hidden_size
    return tokens * (max(feed_forward, attention) + stream) + _scores(shape, arithmetic, tokens, length)


def saved_bytes(shape: ModelShape, arithmetic: Arithmetic, *, tokens: int, length: int, checkpointing: bool) -> int:
    """Bytes that the whole trunk saves for backward; with checkpointing only the input of each block."""
    ends = 4 * FP32_BYTES * shape.hidden_size * tokens
    if checkpointing:
        return ends + shape.num_layers * FP32_BYTES * shape.hidden_size * tokens
    return ends + shape.num_layers * saved_layer_bytes(shape, arithmetic, tokens=tokens, length=length)


def forward_bytes(shape: ModelShape, arithmetic: Arithmetic, *, tokens: int, length: int) -> int:
    """Alive at once in a forward pass without gradients: the residual stream and one half of a block."""
    stream = 3 * FP32_BYTES * shape.hidden_size
    feed_forward = 3 * arithmetic.compute_bytes * shape.intermediate_size
    attention = arithmetic.compute_bytes * 6 * shape.query_width
    scores = 2 * _scores(shape, arithmetic, tokens, length)
    return tokens * (stream + max(feed_forward, attention)) + scores


def logits_bytes(vocab_size: int, *, tokens: int, copies: int = LOGIT_COPIES) -> int:
    """Logits of `tokens` tokens in fp32, times the copies that exist at once."""
    return tokens * vocab_size * FP32_BYTES * copies


def kv_cache_bytes(shape: ModelShape, *, num_seqs: int, length: int, element_bytes: int) -> int:
    """Keys and values of every layer for `num_seqs` sequences of `length` tokens."""
    return 2 * shape.num_layers * shape.kv_width * element_bytes * num_seqs * length
