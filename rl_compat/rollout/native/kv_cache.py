"""The KV cache in fixed memory: one slot per sequence, each token at its position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache


class SlotMemory:
    """Per layer, keys and values `[num_slots, heads, capacity, head_dim]`.

    Memory that a sequence has not yet written holds finite numbers, which a mask of -inf hides.
    """

    def __init__(self, *, num_slots: int, capacity: int) -> None:
        self.num_slots = num_slots
        self.capacity = capacity
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def allocate(self, index: int, heads: int, head_dim: int, *, dtype: torch.dtype, device: torch.device) -> None:
        """The zeroed memory of a layer."""
        shape = (self.num_slots, heads, self.capacity, head_dim)
        keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        self.layers[index] = (keys, values)

    def store(self, index: int, keys: Tensor, values: Tensor, *, rows: Tensor, slots: Tensor, start: int = 0) -> None:
        """Positions `start`… of batch row `rows[i]` of a layer's [P, heads, T, head_dim] go to slot `slots[i]`."""
        end = start + keys.shape[2]
        for memory, states in zip(self.layers[index], (keys, values), strict=True):
            memory[slots, :, start:end] = states[rows].to(memory.dtype)

    def after_prefix(
        self, index: int, keys: Tensor, values: Tensor, *, slot: Tensor, prefix: int
    ) -> tuple[Tensor, Tensor]:
        """A layer's new [P, heads, T, head_dim] behind the first `prefix` positions of a slot."""
        if prefix == 0:
            return keys, values
        parts = []
        for memory, states in zip(self.layers[index], (keys, values), strict=True):
            shared = memory[slot, :, :prefix].expand(states.shape[0], -1, -1, -1)
            parts.append(torch.cat((shared.to(states.dtype), states), dim=2))
        return parts[0], parts[1]

    def move(self, moves: Sequence[tuple[int, int]], *, length: int) -> None:
        """Copy the first `length` positions of slot `source` over slot `target`, for each (source, target).

        No slot may be both a source and a target.
        """
        if not moves:
            return
        device = next(iter(self.layers.values()))[0].device
        sources, targets = torch.tensor(moves, device=device).T
        for pair in self.layers.values():
            for memory in pair:
                memory[targets, :, :length] = memory[sources, :, :length]

    def clear(self) -> None:
        """Zero all memory, so that nothing of an earlier call, not even a NaN, reaches the next."""
        for pair in self.layers.values():
            for memory in pair:
                memory.zero_()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Positions 0… of batch row `rows[i]` go to slot `slots[i]`; the forward attends to its own keys."""

    rows: Tensor
    slots: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """Batch row i is slot i and its one token goes to `positions[i]`; the forward attends to `length` positions."""

    slots: Tensor
    positions: Tensor
    length: int


class SlotCache(Cache):
    """The slots as the cache of a Hugging Face forward, which allocates the memory of a layer on first use.

    `access`, set before a forward, defines how the forward reads and writes.
    """

    def __init__(self, memory: SlotMemory, *, dtype: torch.dtype | None = None) -> None:
        """`dtype` is the dtype of stored keys and values; None keeps their own."""
        super().__init__(layers=[])
        self.dtype = dtype
        self.memory = memory
        self.access: Prefill | Decode | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values [B, heads, T, head_dim]; returns those to attend to."""
        keys, values = self._layer(layer_idx, key_states)
        access = self.access
        if isinstance(access, Prefill):
            self.memory.store(layer_idx, key_states, value_states, rows=access.rows, slots=access.slots)
            return key_states, value_states
        assert access is not None
        keys[access.slots, :, access.positions] = key_states[:, :, 0].to(keys.dtype)
        values[access.slots, :, access.positions] = value_states[:, :, 0].to(values.dtype)
        active = key_states.shape[0]
        return keys[:active, :, : access.length], values[:active, :, : access.length]

    def _layer(self, index: int, states: Tensor) -> tuple[Tensor, Tensor]:
        if index not in self.memory.layers:
            dtype = self.dtype or states.dtype
            self.memory.allocate(index, states.shape[1], states.shape[3], dtype=dtype, device=states.device)
        return self.memory.layers[index]
