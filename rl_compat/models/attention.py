"""The attention of the plan: SDPA with repeated keys where SDPA has no memory-efficient grouped-query kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from rl_compat.errors import ModelError
from rl_compat.planning.types import RolePlan

REPEATED_SDPA = "rlc_sdpa"


def attn_implementation_for(role: RolePlan) -> str:
    """The `attn_implementation` for transformers. Registers `sdpa_with_repeated_keys` if the plan uses it."""
    return register_repeated_sdpa() if role.attention == "sdpa" and role.repeat_kv else role.attention


def register_repeated_sdpa() -> str:
    """Register `sdpa_with_repeated_keys` in transformers; returns its name. May be called twice."""
    from transformers import AttentionInterface  # takes seconds: with the first model
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(REPEATED_SDPA, sdpa_with_repeated_keys)
    AttentionMaskInterface.register(REPEATED_SDPA, sdpa_mask)
    return REPEATED_SDPA


def sdpa_with_repeated_keys(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of query [B, H, Q, D] over key and value [B, G, K, D] with mask [B, 1, Q, K] or None, [B, Q, H, D].

    Keys and values are repeated to H heads before SDPA. A single query token needs no repetition: its H / G heads are
    passed as query positions, so that a decoding step reads the KV cache once. Without a mask, several queries are
    causal.
    """
    if kwargs.get("softcap") is not None:
        raise ModelError("`sdpa` attention cannot cap attention logits", hint="use `plan.attention=eager`")
    if kwargs.get("s_aux") is not None:
        raise ModelError("`sdpa` attention has no attention sinks", hint="use `plan.attention=eager`")
    batch, num_heads, num_queries, _ = query.shape
    groups = num_heads // key.shape[1]
    one_token = num_queries == 1 and (attention_mask is None or attention_mask.shape[1] == 1)
    if one_token:
        query = query.reshape(batch, key.shape[1], groups, query.shape[-1])
    elif groups > 1:
        key, value = (_lowered(part).repeat_interleave(groups, dim=1) for part in (key, value))
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    causal = bool(causal) and attention_mask is None and num_queries > 1
    if causal and key.shape[2] > num_queries:
        key, value = key[:, :, :num_queries], value[:, :, :num_queries]
    output = scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling, is_causal=causal
    )
    output = output.reshape(batch, num_heads, num_queries, value.shape[-1])
    return output.transpose(1, 2).contiguous(), None


def _lowered(tensor: Tensor) -> Tensor:
    """The tensor in the autocast dtype of SDPA, so that the smaller copy is repeated."""
    device_type = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(device_type)) if torch.is_autocast_enabled(device_type) else tensor
