"""Keys and values of many sequences in fixed memory: one slot a sequence, a token stored at its position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache


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
    """Per layer, keys and values `[num_slots, heads, capacity, head_dim]`, allocated by the first forward.

    What a forward does with it is set in `access` beforehand. Memory that a slot's sequence has not written yet
    holds finite numbers, which a mask of -inf hides.
    """

    def __init__(self, *, num_slots: int, capacity: int, dtype: torch.dtype | None = None) -> None:
        """`dtype` is what keys and values are kept in; None keeps theirs."""
        super().__init__(layers=[])
        self.dtype = dtype
        self.num_slots = num_slots
        self.capacity = capacity
        self.access: Prefill | Decode | None = None
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values [B, heads, T, head_dim]; return those to attend to."""
        keys, values = self._layer(layer_idx, key_states, value_states)
        access = self.access
        if isinstance(access, Prefill):
            length = key_states.shape[2]
            keys[access.slots, :, :length] = key_states[access.rows].to(keys.dtype)
            values[access.slots, :, :length] = value_states[access.rows].to(values.dtype)
            return key_states, value_states
        assert access is not None
        keys[access.slots, :, access.positions] = key_states[:, :, 0].to(keys.dtype)
        values[access.slots, :, access.positions] = value_states[:, :, 0].to(values.dtype)
        active = key_states.shape[0]
        return keys[:active, :, : access.length], values[:active, :, : access.length]

    def move(self, moves: Sequence[tuple[int, int]], *, length: int) -> None:
        """Copy the first `length` positions of slot `source` over slot `target`, for each (source, target)."""
        for source, target in moves:
            for keys, values in self._layers.values():
                keys[target, :, :length] = keys[source, :, :length]
                values[target, :, :length] = values[source, :, :length]

    def clear(self) -> None:
        """Zero all memory: nothing of an earlier call, not even a NaN, can reach the next."""
        for keys, values in self._layers.values():
            keys.zero_()
            values.zero_()

    def _layer(self, index: int, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        if index not in self._layers:
            self._layers[index] = (self._allocate(key_states), self._allocate(value_states))
        return self._layers[index]

    def _allocate(self, states: Tensor) -> Tensor:
        shape = (self.num_slots, states.shape[1], self.capacity, states.shape[3])
        return torch.zeros(shape, dtype=self.dtype or states.dtype, device=states.device)
