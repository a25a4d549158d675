"""One call of `generate` inside vLLM: its requests, the step loop, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch

from rl_compat.rollout.counter_rng import response_keys
from rl_compat.rollout.draws import Draw
from rl_compat.rollout.stop_strings import StopStrings
from rl_compat.rollout.types import Response, SamplingParams
from rl_compat.rollout.vllm.draw import ROW_ARGUMENT, DrawCall
from rl_compat.trajectory import FinishReason


class VllmCall:
    """One response to each of the prompts. As a context it leaves vLLM without a request, however it ends."""

    def __init__(
        self,
        engine: Any,
        *,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        seed: int,
        num_valid_tokens: int | None,
        strings: StopStrings | None,
        device: torch.device,
        draw: Draw,
    ) -> None:
        from rl_compat.rollout.vllm.processor import processor_of

        self._engine = engine
        self._prompts = prompts
        self._params = params
        self._strings = strings
        self._lengths: dict[int, int] = {}
        self._returned: dict[int, Sequence[int]] = {}
        self._aborted: dict[int, int] = {}
        self._stopped: set[int] = set()
        self._checked: dict[int, int] = {}
        self._draws = DrawCall(
            params, keys=response_keys(prompts), seed=seed, num_valid_tokens=num_valid_tokens, device=device, draw=draw
        )
        (self._processor,) = engine.collective_rpc(processor_of)

    def __enter__(self) -> VllmCall:
        self._processor.call = self._draws
        self._processor.slots.forget()
        settings = [_request(self._params, row, streams=self._strings is not None) for row in range(len(self._prompts))]
        for row, (prompt, request) in enumerate(zip(self._prompts, settings, strict=True)):
            self._engine.add_request(str(row), {"prompt_token_ids": list(prompt)}, request)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unfinished responses stay as they are."""
        if self._engine is not None:
            lengths = self._processor.slots.lengths()
            unfinished = [row for row in range(len(self._prompts)) if row not in self._lengths]
            self._aborted = {row: min(lengths.get(row, 0), self._params.max_new_tokens) for row in unfinished}
            self._engine.abort_request([str(row) for row in unfinished])
        self.let_go()

    def let_go(self) -> None:
        """Hold nothing of vLLM's any more: the call is over, or vLLM has died."""
        if self._processor is not None:
            self._processor.call = None
        self._engine = self._processor = None

    @property
    def done(self) -> bool:
        return len(self._lengths) == len(self._prompts)

    @property
    def num_finished(self) -> int:
        return len(self._lengths)

    def step(self) -> None:
        """One step of vLLM."""
        for output in self._engine.step():
            row, ids = int(output.request_id), output.outputs[0].token_ids
            if output.finished:
                self._finish(row, ids)
            elif self._strings is not None:
                self._look_for_strings(row, ids)

    def responses(self) -> list[Response]:
        """What was drawn, up to where each response ended."""
        drawn = self._draws.drawn()
        responses = []
        for row in range(len(self._prompts)):
            end = self._end(row, drawn.tokens[row])
            ids = tuple(drawn.tokens[row][:end])
            assert ids == tuple(self._returned.get(row, ids)[:end]), "vLLM returned other tokens than were drawn"
            responses.append(
                Response(
                    token_ids=ids,
                    logprobs=tuple(drawn.logprobs[row][:end]),
                    raw_logprobs=() if drawn.raw_logprobs is None else tuple(drawn.raw_logprobs[row][:end]),
                    finish_reason=self._reason(row, ids),
                )
            )
        return responses

    def _finish(self, row: int, ids: Sequence[int]) -> None:
        self._returned[row] = ids
        if self._strings is None or not self._look_for_strings(row, ids):
            self._lengths[row] = len(ids)

    def _look_for_strings(self, row: int, ids: Sequence[int]) -> bool:
        """Whether a string ends the response, which vLLM is then told to leave."""
        assert self._strings is not None
        end = self._strings.end(ids, num_checked=self._checked.get(row, 0))
        self._checked[row] = len(ids)
        if end is not None and row not in self._lengths:
            self._lengths[row] = end
            self._stopped.add(row)
            self._engine.abort_request([str(row)])
        return end is not None

    def _end(self, row: int, ids: Sequence[int]) -> int:
        """The length of a response; an aborted one may have drawn past its end."""
        if row in self._lengths:
            return self._lengths[row]
        length = self._aborted[row]
        stops = (step + 1 for step, token in enumerate(ids[:length]) if token in self._params.stop_token_ids)
        return next(stops, length)

    def _reason(self, row: int, ids: Sequence[int]) -> FinishReason:
        if row in self._stopped or (ids and ids[-1] in self._params.stop_token_ids):
            return "stop"
        return "length" if len(ids) == self._params.max_new_tokens else "abort"


def _request(params: SamplingParams, row: int, *, streams: bool) -> Any:
    """vLLM's settings of one response: where it ends. It samples greedily from what the processor leaves.

    `streams` shows the tokens of every step, which stop strings need.
    """
    from vllm import SamplingParams as VllmParams
    from vllm.sampling_params import RequestOutputKind

    return VllmParams(
        temperature=0.0,
        max_tokens=params.max_new_tokens,
        stop_token_ids=list(params.stop_token_ids),
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.CUMULATIVE if streams else RequestOutputKind.FINAL_ONLY,
        extra_args={ROW_ARGUMENT: row},
    )
