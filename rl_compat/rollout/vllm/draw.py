"""Tokens drawn by this project inside vLLM's sampler, and which response each of its rows belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_compat.rollout.counter_rng import row_uniforms
from rl_compat.rollout.draws import Draw, plain_draw
from rl_compat.rollout.types import SamplingParams

ROW_ARGUMENT = "rl_compat_row"
"key of the number of the response in the extra arguments of a vLLM request"
MOST_UNIFORMS = 2**21
"random numbers of a call that are computed when it begins; beyond them those of each step are computed then"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Token ids and log-probabilities by response and step; zeros where nothing was drawn."""

    tokens: list[list[int]]
    logprobs: list[list[float]]
    raw_logprobs: list[list[float]] | None


class DrawCall:
    """All draws of one call: what is drawn at a step of a response depends on its logits, the seed and its key.

    vLLM samples greedily from logits that are -inf but for the drawn token. A prompt that is read in pieces, and a
    response that is pushed out and read again, pass the same step several times: the last one counts. vLLM may run a
    step ahead of what it knows to be the end of a response.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        keys: Sequence[int],
        seed: int,
        num_valid_tokens: int | None,
        device: torch.device,
        draw: Draw = plain_draw,
        most_uniforms: int = MOST_UNIFORMS,
    ) -> None:
        """`keys` are those of the responses, by their number in the call."""
        self._params = params
        self._seed = seed
        self._keys = torch.tensor(list(keys), device=device)
        self._num_valid_tokens = num_valid_tokens
        self._draw = draw
        self._width = params.max_new_tokens + 1
        self._uniforms = self._all_uniforms() if len(keys) * self._width <= most_uniforms else None
        self._tokens = torch.zeros(len(keys) * self._width, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(len(self._tokens), dtype=torch.float32, device=device)
        self._raw_logprobs = torch.zeros_like(self._logprobs) if params.raw_logprobs else None

    def draw(self, logits: Tensor, responses: Sequence[int], steps: Sequence[int]) -> Tensor:
        """Logits [B, V] of these steps of these responses, which are overwritten with the drawn tokens.

        Whoever calls this waits for the launches rather than for the device, so there are as few as can be.
        """
        last = self._width - 1
        places = [response * self._width + min(step, last) for response, step in zip(responses, steps, strict=True)]
        at = torch.tensor(places, device="cpu", pin_memory=logits.is_cuda).to(logits.device, non_blocking=True)
        tokens, logprobs, raw = self._draw(
            logits.contiguous(), self._uniforms_at(at), self._params, num_valid_tokens=self._num_valid_tokens
        )
        self._tokens.index_copy_(0, at, tokens)
        self._logprobs.index_copy_(0, at, logprobs)
        if self._raw_logprobs is not None:
            self._raw_logprobs.index_copy_(0, at, raw)
        return logits.fill_(-torch.inf).scatter_(1, tokens[:, None], 0.0)

    def drawn(self) -> Drawn:
        """Everything that was drawn, on the host."""
        shape = (len(self._keys), self._width)
        raw = None if self._raw_logprobs is None else self._raw_logprobs.view(shape).tolist()
        return Drawn(
            tokens=self._tokens.view(shape).tolist(), logprobs=self._logprobs.view(shape).tolist(), raw_logprobs=raw
        )

    def _all_uniforms(self) -> Tensor:
        steps = torch.arange(self._width, device=self._keys.device)
        return row_uniforms(self._seed, self._keys[:, None], steps).flatten()

    def _uniforms_at(self, places: Tensor) -> Tensor:
        if self._uniforms is not None:
            return self._uniforms.index_select(0, places)
        return row_uniforms(self._seed, self._keys[places // self._width], places % self._width)


class SlotResponses:
    """The response of each row of vLLM's batch, kept up to date with what vLLM says of rows added, removed and moved.

    `outputs` is vLLM's own growing list of a response's tokens: its length is the step.
    """

    def __init__(self) -> None:
        self._slots: dict[int, tuple[int, list[int]]] = {}
        self._outputs: dict[int, list[int]] = {}

    def update(
        self,
        *,
        removed: Iterable[int],
        added: Iterable[tuple[int, int, list[int]]],
        moved: Iterable[tuple[int, int, bool]],
    ) -> None:
        """Rows removed, (row, response, outputs) added, and (from, to, both ways) moved, in this order."""
        for slot in removed:
            self._slots.pop(slot, None)
        for slot, response, outputs in added:
            self._slots[slot] = (response, outputs)
            self._outputs[response] = outputs
        for source, target, both_ways in moved:
            going, coming = self._slots.pop(source, None), self._slots.pop(target, None)
            if going is not None:
                self._slots[target] = going
            if coming is not None and both_ways:
                self._slots[source] = coming

    def lengths(self) -> dict[int, int]:
        """Tokens so far of each response that has ever been in the batch."""
        return {response: len(outputs) for response, outputs in self._outputs.items()}

    def forget(self) -> None:
        """Another call begins."""
        self._outputs.clear()

    def rows(self, count: int) -> tuple[list[int], list[int]]:
        """Responses and steps of the first `count` rows."""
        held = [self._slots[slot] for slot in range(count)]
        return [response for response, _ in held], [len(outputs) for _, outputs in held]
