"""The forward of a Hugging Face model over slots, for families without a description."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from rl_compat.rollout.native.attention import AttentionLayout
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
        self._layout = AttentionLayout.of(model.config.get_text_config())
        self._cache = SlotCache(memory, dtype=autocast_dtype)
        self._cache_argument = cache_argument(model)
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
        masks = self._layout.masks(
            positions if ids.shape[1] == 1 else positions[:1], self._places[:length], self._mask_dtype
        )
        with self._autocast(ids.device.type):
            output = self._model(
                input_ids=ids,
                attention_mask=masks,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **{self._cache_argument: self._cache},
            )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _autocast(self, device_type: str) -> AbstractContextManager[Any]:
        if self._autocast_dtype is None:
            return nullcontext()
        return torch.autocast(device_type, dtype=self._autocast_dtype, cache_enabled=not self._captured)


def cache_argument(model: Any) -> str:
    """The name of the cache argument of a Hugging Face forward: `past_key_values`, in newer versions `cache`."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
