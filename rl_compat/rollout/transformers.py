"""The engine around `model.generate`: works for every causal model that transformers can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from rl_compat.planning.types import RolloutPlan
from rl_compat.rollout.counter_rng import call_seed, response_keys, row_uniforms
from rl_compat.rollout.generation_config import neutral_generation_config
from rl_compat.rollout.inference import check_prompts, check_range, generating, num_embeddings
from rl_compat.rollout.sampling import draw, raw_logprobs
from rl_compat.rollout.stop_strings import StopStrings, stop_strings
from rl_compat.rollout.types import Decode, Progress, Response, SamplingParams
from rl_compat.rollout.weights import HoldsWeights, RolloutWeights
from rl_compat.trajectory import FinishReason


class DrawAndRecord(LogitsProcessor):
    """Draws each token itself and leaves `generate` no choice but to take it.

    `generate` then needs none of its own filters, and the log-probability comes from the logits that were drawn from,
    one number a token instead of a row of the vocabulary.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        keys: Sequence[int],
        seed: int,
        num_valid_tokens: int | None,
        strings: StopStrings | None,
        on_finished: Callable[[int], bool],
        device: torch.device,
    ) -> None:
        """`keys` are those of the responses, row by row. `on_finished` says whether to go on."""
        self._params = params
        self._seed = seed
        self._num_valid_tokens = num_valid_tokens
        self._strings = strings
        self._on_finished = on_finished
        self._keys = torch.tensor(list(keys), device=device)
        self._stop = torch.tensor(params.stop_token_ids, dtype=torch.int64, device=device)
        self._ends: list[int | None] = [None] * len(keys)
        self._num_finished = 0
        self._tokens: list[Tensor] = []
        self._logprobs: list[Tensor] = []
        self._raw_logprobs: list[Tensor] = []
        self.finished = torch.zeros(len(keys), dtype=torch.bool, device=device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [B, V] as the model gave them to scores that are -inf but for the drawn token."""
        params = self._params
        tokens, logprobs = draw(
            scores,
            row_uniforms(self._seed, self._keys, torch.full_like(self._keys, len(self._tokens))),
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            num_valid_tokens=self._num_valid_tokens,
        )
        self._tokens.append(tokens)
        self._logprobs.append(logprobs)
        if params.raw_logprobs:
            self._raw_logprobs.append(raw_logprobs(scores, tokens))
        self._mark_finished(tokens)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)

    def responses(self) -> list[Response]:
        """What each row drew, up to and with the token that ended it; unfinished ones as they are."""
        columns = [torch.stack(part, dim=1).tolist() if part else None for part in self._columns()]
        return [self._response(row, columns) for row in range(len(self._ends))]

    def _columns(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        return self._tokens, self._logprobs, self._raw_logprobs

    def _response(self, row: int, columns: list[list[list[Any]] | None]) -> Response:
        end = self._ends[row]
        reason: FinishReason = "stop"
        if end is None:
            end = len(self._tokens)
            reason = "length" if end == self._params.max_new_tokens else "abort"
        tokens, logprobs, raw = (() if part is None else tuple(part[row][:end]) for part in columns)
        return Response(token_ids=tokens, logprobs=logprobs, raw_logprobs=raw, finish_reason=reason)

    def _mark_finished(self, tokens: Tensor) -> None:
        now = (torch.isin(tokens, self._stop) & ~self.finished).tolist()
        if self._strings is not None:
            so_far = torch.stack(self._tokens, dim=1).tolist()
            for row, ids in enumerate(so_far):
                if self._ends[row] is None and not now[row]:
                    now[row] = self._strings.end(ids, num_checked=len(ids) - 1) is not None
        for row, ended in enumerate(now):
            if ended:
                self._ends[row] = len(self._tokens)
        ended = [end is not None for end in self._ends]
        self.finished.copy_(torch.tensor(ended))
        if len(self._tokens) == self._params.max_new_tokens:
            self.finished.fill_(True)
        num_finished = int(self.finished.sum())
        if not self._on_finished(num_finished):
            self.finished.fill_(True)


class UntilFinished(StoppingCriteria):
    """Ends the rows that a recorder says are finished."""

    def __init__(self, recorder: DrawAndRecord) -> None:
        self._recorder = recorder

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        return self._recorder.finished


class TransformersEngine(HoldsWeights):
    """Generates with `model.generate`, in batches of `max_num_seqs` rows padded on the left by the engine."""

    def __init__(
        self,
        model: nn.Module,
        *,
        plan: RolloutPlan,
        pad_token_id: int,
        num_valid_tokens: int | None = None,
        decode: Decode | None = None,
    ) -> None:
        """`decode` gives the text of token ids; only stop strings need it."""
        super().__init__(model, plan)
        self._num_valid_tokens = num_valid_tokens
        self._decode = decode
        self._filler_id = pad_token_id if pad_token_id < num_embeddings(model) else 0
        self._aborted = False

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        group_size: int = 1,
        on_progress: Progress | None = None,
    ) -> list[list[Response]]:
        """`group_size` responses for each prompt, in the order of the prompts.

        DataError for an empty prompt, RLCompatError when fp16 products overflow.
        """
        assert params.max_new_tokens > 0 and group_size > 0
        check_prompts(prompts, num_ids=num_embeddings(self._source))
        strings = stop_strings(params, self._decode)
        self._aborted = False
        weights = self._awake()
        seed = call_seed(params.seed)
        rows = [prompt for prompt in prompts for _ in range(group_size)]
        keys = response_keys(rows)
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        done: dict[int, Response] = {}
        for start in range(0, len(order), self._plan.max_num_seqs):
            chunk = order[start : start + self._plan.max_num_seqs]
            recorder = DrawAndRecord(
                params,
                keys=[keys[row] for row in chunk],
                seed=seed,
                num_valid_tokens=self._num_valid_tokens,
                strings=strings,
                on_finished=self._counting_from(start, on_progress),
                device=weights.model.device,
            )
            if not self._aborted:
                self._generate_batch(weights, [rows[row] for row in chunk], params, recorder)
            done.update(zip(chunk, recorder.responses(), strict=True))
        groups = [[done[index * group_size + i] for i in range(group_size)] for index in range(len(prompts))]
        check_range(groups, dtype=self._plan.compute_dtype)
        return groups

    def abort(self) -> None:
        """End the call that is under way, from any thread: its unfinished responses come back as they are."""
        self._aborted = True

    def _generate_batch(
        self,
        weights: RolloutWeights,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        recorder: DrawAndRecord,
    ) -> None:
        ids, mask = pad_left(prompts, filler_id=self._filler_id)
        model: Any = weights.model
        settings = GenerationConfig(
            max_new_tokens=params.max_new_tokens,
            do_sample=False,
            use_cache=True,
            eos_token_id=None,
            pad_token_id=self._filler_id,
        )
        dtype = weights.autocast_dtype
        autocast = nullcontext() if dtype is None else torch.autocast(model.device.type, dtype=dtype)
        with generating(model), weights.applied(), neutral_generation_config(model), autocast:
            model.generate(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                generation_config=settings,
                logits_processor=LogitsProcessorList([recorder]),
                stopping_criteria=StoppingCriteriaList([UntilFinished(recorder)]),
            )

    def _counting_from(self, start: int, on_progress: Progress | None) -> Callable[[int], bool]:
        """Reports the rows of one batch, `start` rows having finished before it; says whether to go on."""
        reported = 0

        def count(num_finished: int) -> bool:
            nonlocal reported
            if on_progress is not None and num_finished > reported:
                reported = num_finished
                if on_progress(start + num_finished) is False:
                    self._aborted = True
            return not self._aborted

        return count


def pad_left(prompts: Sequence[Sequence[int]], *, filler_id: int) -> tuple[Tensor, Tensor]:
    """Token ids [B, T] with the prompts flush right, and the mask [B, T] of the real ones, both int64."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), width), filler_id, dtype=torch.int64)
    mask = torch.zeros(len(prompts), width, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt, dtype=torch.int64)
        mask[row, width - len(prompt) :] = 1
    return ids, mask
