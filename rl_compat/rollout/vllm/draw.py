"""Draws of this project inside vLLM's sampler, and the response of each row of vLLM's batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from rl_compat.rollout.sampling import Draw, plain_draw, signed64, uniforms
from rl_compat.rollout.session import PartialResponse
from rl_compat.rollout.types import SamplingParams

ROW_ARGUMENT = "rl_compat_row"
"key of the row of a response in the extra arguments of its vLLM request"
MOST_UNIFORMS = 2**21
"number of random numbers computed when requests are added; later ones are computed in their step"

DrawnRow = tuple[list[int], list[float], list[float]]
"token ids, log-probabilities and raw ones of a row by step, zeros where nothing was drawn; raw ones only on request"


class DrawTable:
    """Draws of responses by row and step. A draw depends on the logits, the seed, the key and the step.

    vLLM samples greedily from logits that are -inf except at the drawn token. A prompt that is prefilled in chunks,
    and a response that is preempted and prefilled again, pass the same step several times: the last draw counts. vLLM
    may run a step past the end of a response. A step is counted from the tokens that a response had when it was
    added.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        num_valid_tokens: int | None,
        device: torch.device,
        draw: Draw = plain_draw,
        most_uniforms: int = MOST_UNIFORMS,
    ) -> None:
        self._params = params
        self._num_valid_tokens = num_valid_tokens
        self._draw = draw
        self._most_uniforms = most_uniforms
        self._device = device
        self._unused: list[int] = []
        self._streams = torch.zeros(0, 3, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(0, 0, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(0, 0, device=device)
        self._raw_logprobs = torch.zeros(0, 0, device=device)
        self._uniforms: Tensor | None = None

    def add(self, partials: Sequence[PartialResponse]) -> list[int]:
        """Allocate rows for new responses: free ones first, then new ones."""
        num_rows, width = self._tokens.shape
        missing = max(0, len(partials) - len(self._unused))
        wanted = max([width, *(partial.room + 1 for partial in partials)])
        self._unused += range(num_rows, num_rows + missing)
        rows, self._unused = self._unused[: len(partials)], self._unused[len(partials) :]
        if missing or wanted > width:
            self._streams = _grown(self._streams, num_rows + missing, 3)
            self._tokens = _grown(self._tokens, num_rows + missing, wanted)
            self._logprobs = _grown(self._logprobs, num_rows + missing, wanted)
            if self._params.raw_logprobs:
                self._raw_logprobs = _grown(self._raw_logprobs, num_rows + missing, wanted)
        streams = [(signed64(partial.seed), partial.key, len(partial.token_ids)) for partial in partials]
        if partials:
            self._streams[rows] = torch.tensor(streams, device=self._device)
            seeds, keys, first = self._streams[:, :, None].unbind(1)
            steps = torch.arange(self._tokens.shape[1], device=self._device)
            fits = self._tokens.numel() <= self._most_uniforms
            self._uniforms = uniforms(seeds, keys, first + steps).flatten() if fits else None
        return rows

    def free(self, rows: Sequence[int]) -> None:
        """Free these rows."""
        self._unused += rows

    def draw(self, logits: Tensor, rows: Sequence[int], steps: Sequence[int]) -> Tensor:
        """Logits [B, V] of these steps of these rows, overwritten with the drawn tokens.

        The caller waits for kernel launches rather than for the device, so there are as few as possible.
        """
        width = self._tokens.shape[1]
        places = [row * width + min(step, width - 1) for row, step in zip(rows, steps, strict=True)]
        at = torch.tensor(places, device="cpu", pin_memory=logits.is_cuda).to(logits.device, non_blocking=True)
        tokens, logprobs, raw = self._draw(
            logits.contiguous(), self._uniforms_at(at), self._params, num_valid_tokens=self._num_valid_tokens
        )
        self._tokens.view(-1).index_copy_(0, at, tokens)
        self._logprobs.view(-1).index_copy_(0, at, logprobs)
        if self._params.raw_logprobs:
            self._raw_logprobs.view(-1).index_copy_(0, at, raw)
        return logits.fill_(-torch.inf).scatter_(1, tokens[:, None], 0.0)

    def drawn(self, rows: Sequence[int]) -> list[DrawnRow]:
        """The draws of these rows, on the host."""
        at = torch.tensor(list(rows), dtype=torch.int64, device=self._device)
        tokens, logprobs = self._tokens[at].tolist(), self._logprobs[at].tolist()
        raw = self._raw_logprobs[at].tolist() if self._params.raw_logprobs else [[] for _ in rows]
        return list(zip(tokens, logprobs, raw, strict=True))

    def _uniforms_at(self, places: Tensor) -> Tensor:
        if self._uniforms is not None:
            return self._uniforms.index_select(0, places)
        width = self._tokens.shape[1]
        seeds, keys, first = self._streams[places // width].unbind(1)
        return uniforms(seeds, keys, first + places % width)


def _grown(table: Tensor, num_rows: int, width: int) -> Tensor:
    """A larger table with the same contents in its first rows and columns."""
    grown = table.new_zeros(num_rows, width)
    grown[: table.shape[0], : table.shape[1]] = table
    return grown


class SlotResponses:
    """The response of each row of vLLM's batch, updated with the rows that vLLM reports as added, removed and moved.

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

    def forget(self, responses: Iterable[int]) -> None:
        """Drop the lengths of these responses, whose numbers may be reused."""
        for response in responses:
            self._outputs.pop(response, None)

    def rows(self, count: int) -> tuple[list[int], list[int]]:
        """Responses and steps of the first `count` rows."""
        held = [self._slots[slot] for slot in range(count)]
        return [response for response, _ in held], [len(outputs) for _, outputs in held]
