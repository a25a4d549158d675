"""This project's decoder forward over the model's weights: prefill of prompts, and decode steps over slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_compat.rollout.kernels.decode_ops import (
    PlainOps,
    Rotation,
    StepView,
    additive_mask,
    grouped_attention,
    heads,
)
from rl_compat.rollout.native.decoder_spec import DecoderSpec, Layer
from rl_compat.rollout.native.kv_cache import SlotMemory
from rl_compat.rollout.projections import Projection

MakeProjection = Callable[[Sequence[nn.Module]], Projection]


class OwnForward:
    """Runs a `DecoderSpec` over slots.

    The residual stream has the dtype of the embedding's output, sums and norms are fp32 inside, and matrix products and
    the cache have `compute_dtype`."""

    def __init__(
        self,
        spec: DecoderSpec,
        memory: SlotMemory,
        *,
        projection: MakeProjection,
        head: Projection,
        compute_dtype: torch.dtype,
        ops: PlainOps | None = None,
    ) -> None:
        device = spec.final_norm.weight.device
        self.shares_prefix = True
        self._spec = spec
        self._memory = memory
        self._dtype = compute_dtype
        self._plain = PlainOps(spec, fused_attention=device.type == "cpu")
        self._ops: PlainOps = ops or self._plain
        self._qkv = [projection(layer.qkv) for layer in spec.layers]
        self._output = [projection((layer.output,)) for layer in spec.layers]
        self._gate_up = [projection(layer.gate_up) for layer in spec.layers]
        self._down = [projection((layer.down,)) for layer in spec.layers]
        self._head = head
        self.reads_length = self._ops.reads_length
        self._rotations = _rotations(spec, memory.capacity, device)
        self._places = torch.arange(max(memory.capacity, memory.num_slots), device=device)
        for index in range(len(spec.layers)):
            memory.allocate(index, spec.num_kv_heads, spec.head_dim, dtype=compute_dtype, device=device)

    @property
    def projections(self) -> list[list[Projection]]:
        """All matrix products of a step, grouped over layers by their place in the layer."""
        return [self._qkv, self._output, self._gate_up, self._down, [self._head]]

    def decode(self, tokens: Tensor, positions: Tensor, length: int) -> Tensor:
        """Logits [B, V] in fp32 after writing token i of slot i to its position; steps attend to `length` positions."""
        view = StepView(positions, length, places=self._places, repeats=self._spec.num_kv_heads)
        stream, added = self._spec.embedding(tokens), None
        for index, layer in enumerate(self._spec.layers):
            keys, values = self._memory.layers[index]
            stream, states = self._ops.add_norm(stream, added, layer.input_norm, self._dtype)
            qkv = self._qkv[index](states)
            queries = self._ops.rotate_and_store(qkv, layer, self._rotation(layer), view, keys, values)
            attended = self._output[index](self._ops.attend(queries, keys, values, layer, view))
            stream, added = self._finish(self._ops, index, stream, states, attended)
        logits = self._head(self._ops.add_norm(stream, added, self._spec.final_norm, self._dtype)[1]).float()
        cap = self._spec.logit_softcap
        return logits if cap is None else (logits / cap).tanh_().mul_(cap)

    def prefill(self, ids: Tensor, rows: Tensor, slots: Tensor, *, prefix: int = 0) -> None:
        """Store keys and values of prompts [P, W], padded on the right: batch row `rows[i]` goes to slot `slots[i]`.

        A shared prefix of `prefix` positions is already in the slots. Causal attention never reads the padding, and
        decoding overwrites it before it reads it.
        """
        count, width = ids.shape
        places = self._places[prefix : prefix + width]
        angles = {
            kind: Rotation(cosines=whole.cosines[places][:, None], sines=whole.sines[places][:, None])
            for kind, whole in self._rotations.items()
        }
        stream, added = self._spec.embedding(ids.flatten()), None
        last = len(self._spec.layers) - 1
        for index, layer in enumerate(self._spec.layers):
            stream, states = self._plain.add_norm(stream, added, layer.input_norm, self._dtype)
            qkv = self._qkv[index](states).unflatten(0, (count, width))
            queries, key, value = heads(qkv, self._spec, layer, angles[layer.kind] if layer.rotary else None)
            queries, key, value = (part.transpose(1, 2).to(self._dtype) for part in (queries, key, value))
            self._memory.store(index, key, value, rows=rows, slots=slots, start=prefix)
            if index == last:
                return
            key, value = self._memory.after_prefix(index, key, value, slot=slots[:1], prefix=prefix)
            context = causal_attention(queries, key, value, layer)
            attended = self._output[index](context.flatten(2).flatten(0, 1))
            stream, added = self._finish(self._plain, index, stream, states, attended)

    def _finish(
        self, ops: PlainOps, index: int, stream: Tensor, states: Tensor, attended: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The residual stream, and the output of the feed-forward part of a layer to be added to it."""
        layer = self._spec.layers[index]
        if layer.attention_out_norm is not None:
            attended = ops.norm(attended, layer.attention_out_norm, self._dtype)
        if layer.feed_forward_norm is None:
            return stream, attended + self._feed_forward(ops, index, states)
        stream, states = ops.add_norm(stream, attended, layer.feed_forward_norm, self._dtype)
        added = self._feed_forward(ops, index, states)
        if layer.feed_forward_out_norm is not None:
            added = ops.norm(added, layer.feed_forward_out_norm, self._dtype)
        return stream, added

    def _feed_forward(self, ops: PlainOps, index: int, states: Tensor) -> Tensor:
        inner = self._gate_up[index](states)
        inner = ops.activate(inner) if self._spec.layers[index].gated else self._plain.act(inner)
        return self._down[index](inner)

    def _rotation(self, layer: Layer) -> Rotation | None:
        return self._rotations[layer.kind] if layer.rotary else None


def _rotations(spec: DecoderSpec, capacity: int, device: torch.device) -> dict[str, Rotation]:
    """Angles of every position for every layer type, from the model's own module."""
    places = torch.arange(capacity, device=device)[None]
    wide = torch.zeros(1, dtype=torch.float32, device=device)
    rotations = {}
    for kind in {layer.kind for layer in spec.layers}:
        arguments = {"layer_type": kind} if spec.rotary_by_kind else {}
        cosines, sines = spec.rotary(wide, places, **arguments)
        half = cosines.shape[-1] // 2
        rotations[kind] = Rotation(cosines=cosines[0, :, :half].contiguous(), sines=sines[0, :, :half].contiguous())
    return rotations


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor, layer: Layer) -> Tensor:
    """Queries [P, H, Q, D], the last Q of K positions, on keys and values [P, G, K, D]; output [P, Q, H, D].

    Keys of a group are repeated, since grouped-query SDPA falls back to quadratic math attention on many devices.
    """
    groups = queries.shape[1] // keys.shape[1]
    if groups > 1:
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
    num_queries, num_keys = queries.shape[2], keys.shape[2]

    def mask(dtype: torch.dtype) -> Tensor:
        places = torch.arange(num_keys, device=queries.device)
        return additive_mask(places[num_keys - num_queries :, None] - places, layer.window, dtype)

    if layer.softcap is not None:
        output = grouped_attention(
            queries, keys, values, mask(torch.float32)[None], scaling=layer.scaling, softcap=layer.softcap
        )
    else:
        plain = num_queries == num_keys and (layer.window is None or num_keys <= layer.window)
        hidden = None if plain else mask(queries.dtype)
        output = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=hidden, is_causal=plain, scale=layer.scaling
        )
    return output.transpose(1, 2)
