"""The small operations of a decoder layer as one kernel each, in PyTorch where a kernel does not apply."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from rl_compat.rollout.kernels.cuda_kernels import C_TYPES, Kernels
from rl_compat.rollout.kernels.decode_ops import PlainOps, Rotation, StepView
from rl_compat.rollout.native.decoder_spec import DecoderSpec, Layer, Norm
from rl_compat.rollout.sampling import plain_draw
from rl_compat.rollout.types import SamplingParams

FUSED = ("add_norm", "norm", "rotate_and_store", "activate", "attend", "draw")
"names of the operations with kernels"
ACTIVATION_KINDS: Mapping[str, int] = {
    "silu": 0,
    "swish": 0,
    "gelu_new": 1,
    "gelu_fast": 1,
    "gelu_pytorch_tanh": 1,
    "gelu": 2,
    "relu": 3,
}
_WARPS = 4
_ATTEND_THREADS = 256
_LOWEST = -3.0e38
_MOST_TOKENS = 1024 * 1024
_MOST_GROUPED = 16


def kernel_macros(spec: DecoderSpec, *, stream: torch.dtype, compute: torch.dtype) -> dict[str, str | int]:
    """The dtypes and the head shape for which kernels are compiled."""
    return {
        "STREAM": C_TYPES[stream],
        "NORM": C_TYPES[spec.final_norm.weight.dtype],
        "COMPUTE": C_TYPES[compute],
        "HEAD_DIM": spec.head_dim,
        "GROUP": spec.queries_per_key,
    }


def fitting(spec: DecoderSpec) -> frozenset[str]:
    """The operations of a model that the kernels compute."""
    names = set(FUSED)
    first = spec.layers[0]
    if spec.final_norm.centred:
        names -= {"add_norm", "norm"}
    if any(norm is not None and norm.centred for norm in (first.query_norm, first.key_norm)):
        names -= {"rotate_and_store"}
    if first.attention_out_norm is None and first.feed_forward_out_norm is None:
        names -= {"norm"}
    if not first.gated:
        names -= {"activate"}
    if spec.head_dim % 32 or spec.head_dim > _ATTEND_THREADS or spec.queries_per_key > _MOST_GROUPED:
        names -= {"attend"}
    return frozenset(names)


class FusedOps(PlainOps):
    """The operations in `enabled` as kernels. The residual stream is updated in place."""

    def __init__(self, spec: DecoderSpec, kernels: Kernels, enabled: Collection[str]) -> None:
        super().__init__(spec, fused_attention=False)
        self._kernels = kernels
        self._enabled = frozenset(enabled)
        self._activation = ACTIVATION_KINDS[spec.activation]
        self.reads_length = "attend" not in self._enabled

    def add_norm(self, stream: Tensor, added: Tensor | None, norm: Norm, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if "add_norm" not in self._enabled:
            return super().add_norm(stream, added, norm, dtype)
        rows, hidden = stream.shape
        out = torch.empty(rows, hidden, dtype=dtype, device=stream.device)
        arguments = (stream, added, norm.weight, out, hidden, norm.eps, norm.offset, int(dtype == torch.float32))
        self._kernels.launch("add_norm", (rows, 1), _threads(hidden), arguments)
        return stream, out

    def norm(self, states: Tensor, norm: Norm, dtype: torch.dtype) -> Tensor:
        if "norm" not in self._enabled or dtype != states.dtype:
            return super().norm(states, norm, dtype)
        rows, hidden = states.shape
        out = torch.empty_like(states)
        arguments = (states, norm.weight, out, hidden, norm.eps, norm.offset)
        self._kernels.launch("plain_norm", (rows, 1), _threads(hidden), arguments)
        return out

    def rotate_and_store(
        self, qkv: Tensor, layer: Layer, rotation: Rotation | None, view: StepView, keys: Tensor, values: Tensor
    ) -> Tensor:
        if "rotate_and_store" not in self._enabled:
            return super().rotate_and_store(qkv, layer, rotation, view, keys, values)
        spec, rows = self._spec, qkv.shape[0]
        queries = torch.empty(rows, spec.num_heads, spec.head_dim, dtype=keys.dtype, device=qkv.device)
        norm = layer.query_norm or layer.key_norm
        arguments = (
            qkv,
            view.positions,
            None if rotation is None else rotation.cosines,
            None if rotation is None else rotation.sines,
            None if layer.query_norm is None else layer.query_norm.weight,
            None if layer.key_norm is None else layer.key_norm.weight,
            queries,
            keys,
            values,
            spec.num_kv_heads,
            keys.shape[2],
            0 if rotation is None else rotation.cosines.shape[1],
            0.0 if norm is None else norm.eps,
            0.0 if norm is None else norm.offset,
        )
        heads = spec.num_heads + 2 * spec.num_kv_heads
        self._kernels.launch("rotate_and_store", (rows, -(-heads // _WARPS)), 32 * _WARPS, arguments)
        return queries

    def activate(self, gate_up: Tensor) -> Tensor:
        if "activate" not in self._enabled:
            return super().activate(gate_up)
        rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(rows, inner, dtype=gate_up.dtype, device=gate_up.device)
        self._kernels.launch("activate", (-(-inner // 256), rows), 256, (gate_up, out, inner, self._activation))
        return out

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, layer: Layer, view: StepView) -> Tensor:
        if "attend" not in self._enabled:
            return super().attend(queries, keys, values, layer, view)
        rows, spec = queries.shape[0], self._spec
        out = torch.empty(rows, spec.num_heads * spec.head_dim, dtype=queries.dtype, device=queries.device)
        arguments = (
            queries,
            keys,
            values,
            view.positions,
            out,
            spec.num_kv_heads,
            keys.shape[2],
            layer.window or 0,
            layer.scaling,
            layer.softcap or 0.0,
        )
        self._kernels.launch("attend", (spec.num_kv_heads, rows), _ATTEND_THREADS, arguments)
        return out


def _threads(hidden: int) -> int:
    """The number of threads for one row of a norm: a few numbers per thread."""
    return min(1024, max(64, -(-hidden // 4 // 32) * 32))


class FusedDraw:
    """Draws with one kernel, unless top-k or top-p need a sorted vocabulary."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def __call__(
        self, logits: Tensor, uniform: Tensor, params: SamplingParams, *, num_valid_tokens: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, vocab = logits.shape
        if params.top_k > 0 or params.top_p < 1.0 or logits.dtype != torch.float32 or vocab > _MOST_TOKENS:
            return plain_draw(logits, uniform, params, num_valid_tokens=num_valid_tokens)
        tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
        logprobs, raw = torch.empty(2, rows, device=logits.device)
        arguments = (
            logits,
            uniform,
            tokens,
            logprobs,
            raw,
            vocab,
            vocab if num_valid_tokens is None else min(num_valid_tokens, vocab),
            1.0 / params.temperature if params.temperature > 0 else 0.0,
            math.log(params.min_p) if params.min_p > 0 else _LOWEST,
        )
        self._kernels.launch("draw", (rows, 1), 1024, arguments)
        return tokens, logprobs, raw
