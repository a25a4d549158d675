"""The small operations of a decoder layer in plain PyTorch: norms, rotation and cache write, activation, attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_compat.rollout.native.decoder_spec import DecoderSpec, Layer, Norm

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_fast": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rotation:
    """Cosines and sines [positions, pairs] in fp32 for the first `2 * pairs` numbers of a head, as two halves."""

    cosines: Tensor
    sines: Tensor


class StepView:
    """The positions that a decode step of B sequences attends to: row i up to `positions[i]`, all below `length`.

    Masks are computed on first use, since a kernel that reads positions needs none.
    """

    def __init__(self, positions: Tensor, length: int, *, places: Tensor, repeats: int) -> None:
        """`places` counts from 0, to the capacity and the slots at least; `repeats` is the number of key heads."""
        self.positions = positions
        self.length = length
        self.rows = places[: len(positions)]
        self._places = places
        self._repeats = repeats
        self._masks: dict[int | None, Tensor] = {}
        self._angles: dict[int, Rotation] = {}

    def at(self, rotation: Rotation) -> Rotation:
        """The angles [B, 1, pairs] of the rows, looked up once for all layers that share a table."""
        if id(rotation) not in self._angles:
            cosines, sines = (part[self.positions][:, None] for part in (rotation.cosines, rotation.sines))
            self._angles[id(rotation)] = Rotation(cosines=cosines, sines=sines)
        return self._angles[id(rotation)]

    def mask(self, window: int | None) -> Tensor:
        """The additive mask [B * kv_heads, 1, length] in fp32: 0 where attended, else -inf."""
        if window not in self._masks:
            distance = self.positions[:, None, None] - self._places[: self.length]
            mask = additive_mask(distance, window)[:, None]
            self._masks[window] = mask.expand(-1, self._repeats, -1, -1).flatten(0, 1)
        return self._masks[window]


def additive_mask(distance: Tensor, window: int | None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Positions from a key to its query to a mask of the same shape: 0 where attended, else -inf."""
    hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)


class PlainOps:
    """The operations that can each be one kernel, in PyTorch. `fused_attention` uses SDPA for two matrix products."""

    reads_length = True
    "whether the work of a step depends on `length`; if not, one captured step serves every length"

    def __init__(self, spec: DecoderSpec, *, fused_attention: bool) -> None:
        self._spec = spec
        self._fused_attention = fused_attention
        self.act = ACTIVATIONS[spec.activation]

    def add_norm(self, stream: Tensor, added: Tensor | None, norm: Norm, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The residual stream [N, H] plus `added`, possibly computed in place, and its norm in `dtype`."""
        stream = stream if added is None else stream + added
        return stream, self.norm(stream, norm, dtype)

    def norm(self, states: Tensor, norm: Norm, dtype: torch.dtype) -> Tensor:
        return normed(states, norm).to(dtype)

    def rotate_and_store(
        self, qkv: Tensor, layer: Layer, rotation: Rotation | None, view: StepView, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Rotated queries [B, heads, D]; key and value of row i go to its position in cache row i."""
        queries, key, value = heads(qkv, self._spec, layer, None if rotation is None else view.at(rotation))
        rows = view.rows
        keys[rows, :, view.positions] = key.to(keys.dtype)
        values[rows, :, view.positions] = value.to(values.dtype)
        return queries.to(keys.dtype)

    def activate(self, gate_up: Tensor) -> Tensor:
        """Concatenated gate and up [N, 2 * I] to their gated product [N, I]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return self.act(gate) * up

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, layer: Layer, view: StepView) -> Tensor:
        """Queries [B, heads, D] over the filled part of the cache rows, [B, heads * D]."""
        batch, kv_heads = queries.shape[0], self._spec.num_kv_heads
        grouped = queries.reshape(batch, kv_heads, self._spec.queries_per_key, -1)
        keys, values = keys[:batch, :, : view.length], values[:batch, :, : view.length]
        mask = view.mask(layer.window)
        if self._fused_attention and layer.softcap is None:
            four = mask.view(batch, kv_heads, 1, -1)[:, :1].to(grouped.dtype)
            output = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=four, scale=layer.scaling)
        else:
            output = grouped_attention(grouped, keys, values, mask, scaling=layer.scaling, softcap=layer.softcap)
        return output.reshape(batch, -1)


def normed(states: Tensor, norm: Norm) -> Tensor:
    """The norm over the last dimension, computed in fp32, in the dtype of the states."""
    wide, weight = states.float(), norm.weight.float()
    if norm.centred:
        bias = None if norm.bias is None else norm.bias.float()
        output = F.layer_norm(wide, weight.shape, weight, bias, norm.eps)
    else:
        output = F.rms_norm(wide, weight.shape, weight + norm.offset if norm.offset else weight, norm.eps)
    return output.to(states.dtype)


def heads(qkv: Tensor, spec: DecoderSpec, layer: Layer, at: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
    """[..., (heads + 2 * kv_heads) * D] to queries [..., heads, D] and keys and values [..., kv_heads, D].

    Queries and keys have the layer's head norms and are rotated by `at`, [..., 1, pairs].
    """
    both, values = qkv.unflatten(-1, (-1, spec.head_dim)).split(
        (spec.num_heads + spec.num_kv_heads, spec.num_kv_heads), -2
    )
    parts = (spec.num_heads, spec.num_kv_heads)
    norms = (layer.query_norm, layer.key_norm)
    if any(norm is not None for norm in norms):
        normed_parts = zip(both.split(parts, -2), norms, strict=True)
        both = torch.cat([part if norm is None else normed(part, norm) for part, norm in normed_parts], -2)
    queries, keys = (both if at is None else rotated(both, at)).split(parts, -2)
    return queries, keys, values


def rotated(states: Tensor, at: Rotation) -> Tensor:
    """States [..., heads, D] rotated by angles [..., 1, pairs]; numbers beyond the pairs are unchanged."""
    pairs = at.cosines.shape[-1]
    turned = torch.empty(states.shape, dtype=torch.float32, device=states.device)
    first, second = states[..., :pairs].float(), states[..., pairs : 2 * pairs].float()
    torch.mul(first, at.cosines, out=turned[..., :pairs]).addcmul_(second, at.sines, value=-1)
    torch.mul(second, at.cosines, out=turned[..., pairs : 2 * pairs]).addcmul_(first, at.sines)
    if states.shape[-1] > 2 * pairs:
        turned[..., 2 * pairs :] = states[..., 2 * pairs :]
    return turned.to(states.dtype)


def grouped_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, scaling: float, softcap: float | None
) -> Tensor:
    """One matrix product per key/value head: queries [B, G, Q, D] on keys and values [B, G, L, D], output alike.

    The rows Q are the query heads of a group (or of a group over several positions), so that keys are not repeated.
    `mask` is additive, fp32, [B * G, 1 or Q, L]. Scores and their softmax are fp32 for every dtype of the cache.
    """
    shape = queries.shape
    queries, keys, values = queries.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1)
    if softcap is None:
        scores = scores_plus(mask, queries, keys, scaling)
    else:
        scores = exact_bmm(queries, keys.transpose(1, 2)) * (scaling / softcap)
        scores = scores.tanh_().mul_(softcap).add_(mask)
    return torch.bmm(scores.softmax(dim=-1).to(values.dtype), values).view(shape)


def scores_plus(mask: Tensor, queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
    if queries.dtype == torch.float32:
        return torch.baddbmm(mask, queries, keys.transpose(1, 2), alpha=scaling)
    return exact_bmm(queries, keys.transpose(1, 2)).mul_(scaling).add_(mask)


def exact_bmm(left: Tensor, right: Tensor) -> Tensor:
    """A matrix product with an fp32 result; that of half-precision matrices is not rounded if torch supports it."""
    if left.dtype == torch.float32:
        return torch.bmm(left, right)
    if left.is_cuda and _BMM_WIDENS:
        return torch.bmm(left, right, out_dtype=torch.float32)  # type: ignore[call-overload]
    return torch.bmm(left.float(), right.float())


_BMM_WIDENS = "dtype" in torch.ops.aten.bmm.overloads()
