"""The engine around `model.generate`: works for every causal model that transformers can run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
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
from rl_compat.rollout.inference import autocast, generating, neutral_generation_config, num_embeddings
from rl_compat.rollout.sampling import plain_draw, signed64, uniforms
from rl_compat.rollout.session import PartialResponse
from rl_compat.rollout.types import Decode
from rl_compat.rollout.weights import HoldsWeights


class DrawAndRecord(LogitsProcessor):
    """Draws each token and forces `generate` to use it.

    So `generate` applies no filters, and the log-probability comes from the same logits, as one number per token
    instead of a row over the vocabulary.
    """

    def __init__(
        self,
        batch: Sequence[PartialResponse],
        *,
        version: int,
        num_valid_tokens: int | None,
        on_step: Callable[[int], bool],
        device: torch.device,
    ) -> None:
        """Row i draws for `batch[i]`. `on_step` receives the number of finished rows and returns False to end."""
        self.finished = torch.zeros(len(batch), dtype=torch.bool, device=device)
        self._batch = batch
        self._params = batch[0].params
        self._version = version
        self._num_valid_tokens = num_valid_tokens
        self._on_step = on_step
        self._seeds = torch.tensor([signed64(partial.seed) for partial in batch], device=device)
        self._keys = torch.tensor([partial.key for partial in batch], device=device)
        self._drawn = torch.tensor([len(partial.token_ids) for partial in batch], device=device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [B, V] of the model to scores that are -inf except at the drawn tokens."""
        numbers = uniforms(self._seeds, self._keys, self._drawn)
        tokens, logprobs, raw = plain_draw(scores, numbers, self._params, num_valid_tokens=self._num_valid_tokens)
        self._drawn += 1
        columns = [part.tolist() for part in (tokens, logprobs, raw)]
        for partial, token, logprob, raw_logprob in zip(self._batch, *columns, strict=True):
            if partial.finish_reason is None:
                raws = [raw_logprob] if self._params.raw_logprobs else []
                partial.extend([token], [logprob], raws, version=self._version)
        ended = [partial.finish_reason is not None for partial in self._batch]
        goes_on = self._on_step(sum(ended))
        self.finished.copy_(torch.tensor(ended) | (not goes_on))
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)


class UntilFinished(StoppingCriteria):
    """Ends the rows that a recorder marks as finished."""

    def __init__(self, recorder: DrawAndRecord) -> None:
        self._recorder = recorder

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        return self._recorder.finished


class TransformersEngine(HoldsWeights):
    """Generates with `model.generate`, in batches of `max_num_seqs` rows that the engine pads on the left."""

    def __init__(
        self,
        model: nn.Module,
        plan: RolloutPlan,
        *,
        pad_token_id: int,
        num_valid_tokens: int | None = None,
        decode: Decode | None = None,
    ) -> None:
        super().__init__(model, plan, num_valid_tokens=num_valid_tokens, decode=decode)
        self._filler_id = pad_token_id if pad_token_id < num_embeddings(model) else 0
        self._round: deque[PartialResponse] = deque()

    def sleep(self) -> None:
        """Pause, and release the copy of the weights."""
        self._evict()
        super().sleep()

    @contextmanager
    def _generating(self) -> Iterator[None]:
        weights = self._awake()
        model, mixed = weights.model, autocast(weights.model.device, weights.autocast_dtype)
        with generating(model), weights.applied(), neutral_generation_config(model), mixed:
            yield

    def _evict(self) -> None:
        self._waiting.extendleft(reversed(self._round))
        self._round.clear()

    def _advance(self, max_tokens: int | None, report: Callable[[int], None]) -> list[PartialResponse]:
        """The next batch of the current round, which groups requests of similar length and precedes later requests."""
        if not self._round:
            draw = self._waiting[0].params.draw_settings
            same = takewhile(lambda partial: partial.params.draw_settings == draw, self._waiting)
            self._round.extend(sorted(same, key=lambda partial: partial.length))
            for _ in self._round:
                self._waiting.popleft()
        batch = [self._round.popleft() for _ in range(min(self._plan.max_num_seqs, len(self._round)))]
        try:
            self._generate_batch(batch, max_tokens, report)
        finally:
            self._round.extendleft(reversed([partial for partial in batch if partial.finish_reason is None]))
        return [partial for partial in batch if partial.finish_reason is not None]

    def _generate_batch(
        self, batch: Sequence[PartialResponse], max_tokens: int | None, report: Callable[[int], None]
    ) -> None:
        assert self._weights is not None
        model = self._weights.model
        room = max(partial.room for partial in batch)

        def go_on(num_finished: int) -> bool:
            report(num_finished)
            return not self._aborted

        recorder = DrawAndRecord(
            batch,
            version=self.policy_version,
            num_valid_tokens=self._num_valid_tokens,
            on_step=go_on,
            device=model.device,
        )
        ids, mask = pad_left([partial.context for partial in batch], filler_id=self._filler_id)
        settings = GenerationConfig(
            max_new_tokens=room if max_tokens is None else min(room, max_tokens),
            do_sample=False,
            use_cache=True,
            eos_token_id=None,
            pad_token_id=self._filler_id,
        )
        model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            generation_config=settings,
            logits_processor=LogitsProcessorList([recorder]),
            stopping_criteria=StoppingCriteriaList([UntilFinished(recorder)]),
        )


def pad_left(prompts: Sequence[Sequence[int]], *, filler_id: int) -> tuple[Tensor, Tensor]:
    """Token ids [B, T] padded on the left, and their mask [B, T], both int64."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), width), filler_id, dtype=torch.int64)
    mask = torch.zeros(len(prompts), width, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt, dtype=torch.int64)
        mask[row, width - len(prompt) :] = 1
    return ids, mask
