"""The engine around `model.generate`: works for every causal model that transformers can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from rl_compat.planning.types import RolloutPlan
from rl_compat.rollout.generation_config import neutral_generation_config
from rl_compat.rollout.inference import check_prompts, generating, num_embeddings
from rl_compat.rollout.sampling import draw, make_generator
from rl_compat.rollout.types import Response, SamplingParams
from rl_compat.rollout.weights import HoldsWeights, RolloutWeights


class DrawAndRecord(LogitsProcessor):
    """Draws each token itself and leaves `generate` no choice but to take it.

    `generate` then needs none of its own filters, and the log-probability comes from the logits that were drawn from,
    one number a token instead of a row of the vocabulary.
    """

    def __init__(
        self,
        params: SamplingParams,
        generator: torch.Generator,
        *,
        num_rows: int,
        num_valid_tokens: int | None,
        on_finished: Callable[[int], None],
    ) -> None:
        device = generator.device
        self._params = params
        self._generator = generator
        self._num_valid_tokens = num_valid_tokens
        self._on_finished = on_finished
        self._stop = torch.tensor(params.stop_token_ids, dtype=torch.int64, device=device)
        self._finished = torch.zeros(num_rows, dtype=torch.bool, device=device)
        self._num_finished = 0
        self._tokens: list[Tensor] = []
        self._logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [B, V] as the model gave them to scores that are -inf but for the drawn token."""
        uniform = torch.rand(len(scores), dtype=torch.float64, device=scores.device, generator=self._generator)
        tokens, logprobs = draw(
            scores,
            uniform,
            temperature=self._params.temperature,
            top_k=self._params.top_k,
            top_p=self._params.top_p,
            num_valid_tokens=self._num_valid_tokens,
        )
        self._tokens.append(tokens)
        self._logprobs.append(logprobs)
        self._count_finished(tokens)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)

    def responses(self) -> list[Response]:
        """What each row drew, up to and with its first stop token."""
        tokens, logprobs = torch.stack(self._tokens, dim=1).tolist(), torch.stack(self._logprobs, dim=1).tolist()
        return [self._response(*row) for row in zip(tokens, logprobs, strict=True)]

    def _response(self, tokens: list[int], logprobs: list[float]) -> Response:
        stops = (step for step, token in enumerate(tokens) if token in self._params.stop_token_ids)
        end = next(stops, None)
        length = len(tokens) if end is None else end + 1
        return Response(
            token_ids=tuple(tokens[:length]),
            logprobs=tuple(logprobs[:length]),
            finish_reason="length" if end is None else "stop",
        )

    def _count_finished(self, tokens: Tensor) -> None:
        self._finished |= torch.isin(tokens, self._stop)
        if len(self._tokens) == self._params.max_new_tokens:
            self._finished.fill_(True)
        num_finished = int(self._finished.sum())
        if num_finished > self._num_finished:
            self._num_finished = num_finished
            self._on_finished(num_finished)


class TransformersEngine(HoldsWeights):
    """Generates with `model.generate`, in batches of `max_num_seqs` rows padded on the left by the engine."""

    def __init__(
        self, model: nn.Module, *, plan: RolloutPlan, pad_token_id: int, num_valid_tokens: int | None = None
    ) -> None:
        super().__init__(model, plan)
        self._num_valid_tokens = num_valid_tokens
        self._filler_id = pad_token_id if pad_token_id < num_embeddings(model) else 0

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        group_size: int = 1,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[list[Response]]:
        """`group_size` responses for each prompt, in the order of the prompts; DataError for an empty prompt."""
        assert params.max_new_tokens > 0 and group_size > 0
        check_prompts(prompts, num_ids=num_embeddings(self._source))
        weights = self._awake()
        generator = make_generator(params.seed, weights.model.device)
        rows = [index for index in range(len(prompts)) for _ in range(group_size)]
        order = sorted(range(len(rows)), key=lambda row: len(prompts[rows[row]]))
        done: dict[int, Response] = {}
        for start in range(0, len(order), self._plan.max_num_seqs):
            chunk = order[start : start + self._plan.max_num_seqs]
            recorder = DrawAndRecord(
                params,
                generator,
                num_rows=len(chunk),
                num_valid_tokens=self._num_valid_tokens,
                on_finished=_counting_from(start, on_progress),
            )
            self._generate_batch(weights, [prompts[rows[row]] for row in chunk], params, recorder)
            done.update(zip(chunk, recorder.responses(), strict=True))
        return [[done[index * group_size + i] for i in range(group_size)] for index in range(len(prompts))]

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
            eos_token_id=list(params.stop_token_ids) or None,
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
            )


def _counting_from(start: int, on_progress: Callable[[int], None] | None) -> Callable[[int], None]:
    """`on_progress` for the rows of one batch, `start` rows having finished before it."""
    return (lambda count: on_progress(start + count)) if on_progress is not None else (lambda count: None)


def pad_left(prompts: Sequence[Sequence[int]], *, filler_id: int) -> tuple[Tensor, Tensor]:
    """Token ids [B, T] with the prompts flush right, and the mask [B, T] of the real ones, both int64."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), width), filler_id, dtype=torch.int64)
    mask = torch.zeros(len(prompts), width, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt, dtype=torch.int64)
        mask[row, width - len(prompt) :] = 1
    return ids, mask
