"""The forward of a Hugging Face model over slots, for families without a description."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from rl_compat.models.attention import register_repeated_sdpa
from rl_compat.rollout.inference import autocast
from rl_compat.rollout.kernels.decode_ops import additive_mask
from rl_compat.rollout.native.kv_cache import Decode, Prefill, SlotCache, SlotMemory


class HuggingFaceForward:
    """Calls the model's own forward with a cache of slots and with masks."""

    reads_length = True
    shares_prefix = False

    def __init__(self, model: Any, memory: SlotMemory, *, autocast_dtype: torch.dtype | None, captured: bool) -> None:
        embedding = model.get_input_embeddings().weight
        self._model = model
        self._mask_dtype = embedding.dtype
        self._autocast_dtype = autocast_dtype
        self._captured = captured
        self._windows = attention_windows(model.config.get_text_config())
        self._cache = SlotCache(memory, dtype=autocast_dtype)
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        "named `cache` in newer versions"
        self._slots = torch.arange(memory.num_slots, device=embedding.device)
        self._places = torch.arange(memory.capacity, device=embedding.device)

    def decode(self, tokens: Tensor, positions: Tensor, length: int) -> Tensor:
        """Logits [B, V] after writing token i of slot i to its position; steps attend to `length` positions."""
        self._cache.access = Decode(slots=self._slots[: len(tokens)], positions=positions, length=length)
        return self._forward(tokens[:, None], positions[:, None], length)

    def prefill(self, ids: Tensor, rows: Tensor, slots: Tensor, *, prefix: int = 0) -> None:
        """Store keys and values of prompts [P, W], padded on the right: batch row `rows[i]` goes to slot `slots[i]`.

        Causal attention never reads the padding, and decoding overwrites it before it reads it.
        """
        assert prefix == 0
        count, width = ids.shape
        self._cache.access = Prefill(rows=rows, slots=slots)
        self._forward(ids, self._places[None, :width].expand(count, -1), width)

    def _forward(self, ids: Tensor, positions: Tensor, length: int) -> Tensor:
        """Logits [B, V] of the last column."""
        queries = positions if ids.shape[1] == 1 else positions[:1]
        distance = queries[:, None, :, None] - self._places[:length]
        masks = {kind: additive_mask(distance, window, self._mask_dtype) for kind, window in self._windows.items()}
        with autocast(ids.device, self._autocast_dtype, caches=not self._captured):
            output = self._model(
                input_ids=ids,
                attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **{self._cache_argument: self._cache},
            )
        logits: Tensor = output.logits[:, -1]
        return logits


def attention_windows(config: Any) -> dict[str, int | None]:
    """The types of attention layers of a Hugging Face text configuration.

    Each with its window in tokens, including the query's own; None is unlimited.
    """
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if types is None:
        types = ["full_attention" if window is None else "sliding_attention"]
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(set(types))}


def attention_name(model: Any) -> str | None:
    """The attention of generation, over repeated keys, or None for a model with eager attention, which keeps it."""
    return None if model.config.get_text_config()._attn_implementation == "eager" else register_repeated_sdpa()
