"""Requests in progress inside vLLM: adding them, stepping, and reading their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rl_compat.rollout.sampling import Draw
from rl_compat.rollout.session import PartialResponse
from rl_compat.rollout.types import SamplingParams
from rl_compat.rollout.vllm.draw import ROW_ARGUMENT, DrawTable


@dataclass(slots=True, kw_only=True, eq=False)
class _Placed:
    """A response, and its row in the table of draws."""

    partial: PartialResponse
    row: int
    num_checked: int = 0
    "number of tokens already searched for stop strings"
    length: int | None = None
    "number of tokens up to the end of the response"
    by_string: bool = False
    returned: Sequence[int] = ()
    "vLLM's own tokens, once it has finished the request"


class VllmRequests:
    """Requests with the same draw settings. Their tokens stay on the device until `read` or `evict`."""

    def __init__(
        self,
        engine: Any,
        params: SamplingParams,
        *,
        num_valid_tokens: int | None,
        device: torch.device,
        draw: Draw,
    ) -> None:
        from rl_compat.rollout.vllm.processor import processor_of

        self.draw_settings = params.draw_settings
        self._engine = engine
        self._table = DrawTable(params, num_valid_tokens=num_valid_tokens, device=device, draw=draw)
        self._active: dict[int, _Placed] = {}
        self._ended: dict[int, _Placed] = {}
        (self._processor,) = engine.collective_rpc(processor_of)
        self._processor.table = self._table
        self._processor.slots.forget(list(self._processor.slots.lengths()))

    @property
    def active(self) -> list[PartialResponse]:
        """Responses in progress in vLLM."""
        return [placed.partial for placed in self._active.values()]

    @property
    def unread(self) -> list[PartialResponse]:
        """Ended responses whose tokens are still on the device."""
        return [placed.partial for placed in self._ended.values()]

    @property
    def done(self) -> bool:
        """Whether every response has been read."""
        return not self._active and not self._ended

    def add(self, partials: Sequence[PartialResponse]) -> None:
        """Add requests to vLLM; their existing tokens become part of the prompt."""
        for row, partial in zip(self._table.add(partials), partials, strict=True):
            self._active[partial.number] = _Placed(partial=partial, row=row)
            prompt = {"prompt_token_ids": list(partial.context)}
            self._engine.add_request(str(partial.number), prompt, _request(partial, row))

    def step(self) -> list[PartialResponse]:
        """One step of vLLM; returns the responses that ended."""
        before = set(self._ended)
        for output in self._engine.step():
            placed = self._active.get(int(output.request_id))
            if placed is None:
                continue
            ids = output.outputs[0].token_ids
            if placed.partial.strings is not None:
                self._search(placed, ids)
            if output.finished:
                placed.returned = ids
                placed.length = len(ids) if placed.length is None else placed.length
            if placed.length is not None:
                self._ended[placed.partial.number] = self._active.pop(placed.partial.number)
        return [placed.partial for number, placed in self._ended.items() if number not in before]

    def read(self, partials: Sequence[PartialResponse], *, version: int) -> None:
        """Fetch the tokens of unread responses and free their rows."""
        numbers = [partial.number for partial in partials]
        placed = [self._ended.pop(number) for number in numbers if number in self._ended]
        drawn = self._table.drawn([one.row for one in placed])
        for one, (tokens, logprobs, raw) in zip(placed, drawn, strict=True):
            assert one.length is not None
            kept, partial = tokens[: one.length], one.partial
            assert kept == list(one.returned or kept)[: one.length], "vLLM returned different tokens than were drawn"
            partial.token_ids += kept
            partial.logprobs += logprobs[: one.length]
            partial.raw_logprobs += raw[: one.length]
            partial.versions += [version] * one.length
            stopped = one.by_string or (kept and kept[-1] in partial.stop)
            partial.finish_reason = "stop" if stopped else "length"
        self._free(placed)

    def evict(self, *, version: int) -> list[PartialResponse]:
        """Remove all active requests from vLLM with their tokens so far; some may turn out to have ended."""
        active, self._active = list(self._active.values()), {}
        lengths = self._processor.slots.lengths()
        self._engine.abort_request([str(one.partial.number) for one in active])
        for one, (tokens, logprobs, raw) in zip(active, self._table.drawn([one.row for one in active]), strict=True):
            count = min(lengths.get(one.row, 0), one.partial.room)
            one.partial.extend(tokens[:count], logprobs[:count], raw[:count], version=version)
        self._free(active)
        return [one.partial for one in active]

    def let_go(self) -> None:
        """Drop every reference to vLLM, after all requests have finished or vLLM has failed."""
        if self._processor is not None:
            self._processor.table = None
        self._engine = self._processor = None

    def _search(self, placed: _Placed, ids: Sequence[int]) -> None:
        """End the response at its first stop string, and abort the request in vLLM."""
        partial = placed.partial
        assert partial.strings is not None
        earlier = len(partial.token_ids)
        end = partial.strings.end([*partial.token_ids, *ids], num_checked=earlier + placed.num_checked)
        placed.num_checked = len(ids)
        if end is not None:
            placed.length, placed.by_string = end - earlier, True
            self._engine.abort_request([str(partial.number)])

    def _free(self, placed: Sequence[_Placed]) -> None:
        rows = [one.row for one in placed]
        self._table.free(rows)
        if self._processor is not None:
            self._processor.slots.forget(rows)


def _request(partial: PartialResponse, row: int) -> Any:
    """vLLM's settings of one response: its limits. vLLM samples greedily from the logits of the processor.

    Stop strings need the tokens of every step.
    """
    from vllm import SamplingParams as VllmParams
    from vllm.sampling_params import RequestOutputKind

    streams = partial.strings is not None
    return VllmParams(
        temperature=0.0,
        max_tokens=partial.room,
        stop_token_ids=list(partial.params.stop_token_ids),
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.CUMULATIVE if streams else RequestOutputKind.FINAL_ONLY,
        extra_args={ROW_ARGUMENT: row},
    )
