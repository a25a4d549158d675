"""One token for every slot: the forward, the draw, and their state in tensors that never move."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from rl_compat.rollout.attention import AttentionLayout
from rl_compat.rollout.cuda_graphs import StepGraphs
from rl_compat.rollout.kv_cache import Decode, Prefill, SlotCache
from rl_compat.rollout.sampling import draw
from rl_compat.rollout.types import SamplingParams


class SlotDecoder:
    """A Hugging Face causal model over `num_slots` sequences of at most `capacity` tokens.

    The state of slot i is `tokens[i]`, the next input, and `positions[i]`, where it goes. A step feeds the first
    `active` slots, draws their next tokens and advances them; no step waits for the device. With `graphs` the same
    step is captured once per shape and replayed.
    """

    def __init__(
        self,
        model: Any,
        *,
        num_slots: int,
        capacity: int,
        num_valid_tokens: int | None,
        autocast_dtype: torch.dtype | None = None,
        graphs: StepGraphs | None = None,
    ) -> None:
        embedding = model.get_input_embeddings().weight
        self.device = embedding.device
        self.num_slots = num_slots
        self.capacity = capacity
        self._model = model
        self._mask_dtype = embedding.dtype
        self._autocast_dtype = autocast_dtype
        self._num_valid_tokens = num_valid_tokens
        self._graphs = graphs
        self._layout = AttentionLayout.of(model.config.get_text_config())
        self._cache = SlotCache(num_slots=num_slots, capacity=capacity, dtype=autocast_dtype)
        self._cache_argument = cache_argument(model)
        self._slots = torch.arange(num_slots, device=self.device)
        self._keys = torch.arange(capacity, device=self.device)
        self._tokens = torch.zeros(num_slots, dtype=torch.int64, device=self.device)
        self._positions = torch.zeros(num_slots, dtype=torch.int64, device=self.device)
        self._logprobs = torch.zeros(num_slots, device=self.device)
        self._uniform = torch.zeros(num_slots, dtype=torch.float64, device=self.device)

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[Sequence[int]]) -> None:
        """Store the keys and values of each prompt in its slots: one forward, padded on the right.

        Causal attention keeps padding out of the real tokens, and decoding overwrites it before it is ever seen.
        """
        width = max(len(prompt) for prompt in prompts)
        ids = torch.zeros(len(prompts), width, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt, dtype=torch.int64)
        rows = [row for row, targets in enumerate(slots) for _ in targets]
        targets = [slot for targets in slots for slot in targets]
        self._cache.access = Prefill(
            rows=torch.tensor(rows, device=self.device), slots=torch.tensor(targets, device=self.device)
        )
        positions = self._keys[None, :width]
        self._forward(ids.to(self.device), positions.expand(len(prompts), -1), self._layout_masks(positions, width))

    def set_state(self, tokens: Sequence[int], positions: Sequence[int]) -> None:
        """What the first slots feed next, and where."""
        self._tokens[: len(tokens)].copy_(torch.tensor(tokens))
        self._positions[: len(positions)].copy_(torch.tensor(positions))

    def move(self, moves: Sequence[tuple[int, int]], *, length: int) -> None:
        """Copy slots over slots: (source, target), the first `length` positions."""
        self._cache.move(moves, length=length)

    def clear(self) -> None:
        """Forget the tokens of all slots."""
        self._cache.clear()

    def steps(
        self, active: int, *, count: int, length: int, params: SamplingParams, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """`count` tokens for the first `active` slots: ids and log-probabilities [count, active].

        `length` positions are attended to; every position of these steps must lie below it or is of no interest.
        """
        tokens = torch.empty(count, active, dtype=torch.int64, device=self.device)
        logprobs = torch.empty(count, active, device=self.device)

        def body() -> None:
            self._step(active, length, params)

        for step in range(count):
            self._uniform[:active].uniform_(generator=generator)
            if self._graphs is None:
                body()
            else:
                key = (active, length, params.temperature, params.top_k, params.top_p)
                self._graphs.run(key, body, state=(self._tokens, self._positions))
            tokens[step].copy_(self._tokens[:active])
            logprobs[step].copy_(self._logprobs[:active])
        return tokens, logprobs

    def _step(self, active: int, length: int, params: SamplingParams) -> None:
        tokens, positions = self._tokens[:active], self._positions[:active]
        self._cache.access = Decode(slots=self._slots[:active], positions=positions, length=length)
        logits = self._forward(tokens[:, None], positions[:, None], self._layout_masks(positions[:, None], length))
        drawn, logprobs = draw(
            logits,
            self._uniform[:active],
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            num_valid_tokens=self._num_valid_tokens,
        )
        tokens.copy_(drawn)
        self._logprobs[:active].copy_(logprobs)
        positions.add_(1).clamp_(max=length - 1)

    def _layout_masks(self, queries: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        return self._layout.masks(queries, self._keys[:length], self._mask_dtype)

    def _forward(self, ids: Tensor, positions: Tensor, masks: Tensor | dict[str, Tensor]) -> Tensor:
        """Logits [B, V] of the last column."""
        with self._autocast():
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

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self._autocast_dtype, cache_enabled=self._graphs is None)


def cache_argument(model: Any) -> str:
    """The name of the cache argument of a Hugging Face forward: `past_key_values`, in newer versions `cache`."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
