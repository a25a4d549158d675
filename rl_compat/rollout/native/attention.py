"""Attention over a cache in which a token's index is its position: masks and the kernel call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ATTENTION_NAME = "rl_compat_rollout"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayout:
    """The types of attention layers in a model and their windows."""

    windows: Mapping[str, int | None]
    "window in tokens by layer type, including the query's own; None is unlimited"

    @classmethod
    def of(cls, config: Any) -> AttentionLayout:
        """The layer types of a Hugging Face text configuration."""
        window = getattr(config, "sliding_window", None)
        types = getattr(config, "layer_types", None)
        if types is None:
            types = ["full_attention" if window is None else "sliding_attention"]
        return cls(windows={kind: window if kind == "sliding_attention" else None for kind in sorted(set(types))})

    def masks(self, queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
        """Query positions [B, Q] and key positions [K] to an additive mask [B, 1, Q, K]: 0 where attended, else -inf.

        One mask if all layers have the same type, otherwise one per type.
        """
        distance = queries[:, None, :, None] - keys
        by_type = {kind: _additive(distance, window, dtype) for kind, window in self.windows.items()}
        return by_type if len(by_type) > 1 else next(iter(by_type.values()))


def _additive(distance: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def cached_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Query [B, H, Q, D] on keys and values [B, G, K, D], G dividing H, with an additive mask; output [B, Q, H, D].

    For a single query, head groups become query rows, so that keys are read once and not repeated; PyTorch's
    grouped-query flag falls back to quadratic math attention on many devices. Longer queries repeat the keys.
    """
    assert kwargs.get("softcap") is None and kwargs.get("s_aux") is None
    batch, heads, length, _ = query.shape
    groups = heads // key.shape[1]
    if length == 1:
        query = query.reshape(batch, key.shape[1], groups, -1)
    elif groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)
    return output.reshape(batch, heads, length, -1).transpose(1, 2).contiguous(), None


def attention_name(model: Any) -> str | None:
    """The attention of generation: `cached_attention`, or None for a model with eager attention, which keeps it."""
    return None if model.config.get_text_config()._attn_implementation == "eager" else ATTENTION_NAME


def register() -> None:
    """Register `cached_attention` in transformers under ATTENTION_NAME. May be called twice."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION_NAME, cached_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
