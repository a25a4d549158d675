"""Attention of prefill, with all rows at the same positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_compat.rollout.native.decoder_spec import Layer


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor, layer: Layer) -> Tensor:
    """Queries [P, H, Q, D], the last Q of K positions, on keys and values [P, G, K, D]; output [P, Q, H, D].

    Keys of a group are repeated, since grouped-query SDPA falls back to quadratic math attention on many devices.
    """
    groups = queries.shape[1] // keys.shape[1]
    if groups > 1:
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
    mask = _mask(queries.shape[2], keys.shape[2], layer.window, queries)
    if layer.softcap is not None:
        output = _capped(queries, keys, values, mask, layer)
    else:
        output = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=layer.scaling
        )
    return output.transpose(1, 2)


def _mask(num_queries: int, num_keys: int, window: int | None, like: Tensor) -> Tensor | None:
    """The additive mask [1, 1, Q, K]; None if plain causal attention over as many keys as queries is equivalent."""
    if num_queries == num_keys and (window is None or num_keys <= window):
        return None
    places = torch.arange(num_keys, device=like.device)
    distance = places[num_keys - num_queries :, None] - places
    hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
    return torch.zeros(1, 1, num_queries, num_keys, dtype=like.dtype, device=like.device).masked_fill_(
        hidden, -torch.inf
    )


def _capped(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, layer: Layer) -> Tensor:
    """Attention with soft-capped scores (a hyperbolic tangent), which PyTorch's fused kernels do not support."""
    assert layer.softcap is not None
    scores = queries.float() @ keys.float().transpose(2, 3) * (layer.scaling / layer.softcap)
    scores = scores.tanh_().mul_(layer.softcap)
    if mask is None:
        length = scores.shape[-1]
        hidden = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu_(1)
        scores.masked_fill_(hidden, -torch.inf)
    else:
        scores += mask
    return scores.softmax(dim=-1).to(values.dtype) @ values
