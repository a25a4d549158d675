"""The baseline of the benchmark: `generate` of transformers in static batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from rl_compat.resharding.source import WeightSource
from rl_compat.rollout.inference import generating, hugging_face_model, neutral_generation_config
from rl_compat.rollout.transformers import pad_left
from rl_compat.rollout.types import Response, SamplingParams


class PlainGenerate:
    """`model.generate` with sampling, in batches of fixed size and in the order of the prompts."""

    def __init__(self, model: nn.Module, *, batch: int) -> None:
        self._model = hugging_face_model(model)
        self._batch = batch

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, group_size: int = 1
    ) -> list[list[Response]]:
        from transformers import GenerationConfig

        assert group_size == 1
        model: Any = self._model
        settings = GenerationConfig(
            max_new_tokens=params.max_new_tokens,
            do_sample=True,
            temperature=params.temperature,
            top_k=0,
            eos_token_id=list(params.stop_token_ids) or None,
            pad_token_id=0,
        )
        responses = []
        for first in range(0, len(prompts), self._batch):
            ids, mask = pad_left(prompts[first : first + self._batch], filler_id=0)
            with generating(model), neutral_generation_config(model):
                output = model.generate(
                    input_ids=ids.to(model.device), attention_mask=mask.to(model.device), generation_config=settings
                )
            responses += [[_cut(row, params)] for row in output[:, ids.shape[1] :].tolist()]
        return responses

    def load(self, source: WeightSource) -> None:
        """Do nothing, since the engine uses the model's weights."""
        del source


def _cut(tokens: list[int], params: SamplingParams) -> Response:
    end = next((place + 1 for place, token in enumerate(tokens) if token in params.stop_token_ids), len(tokens))
    return Response(
        token_ids=tuple(tokens[:end]),
        logprobs=(),
        finish_reason="stop" if tokens[end - 1] in params.stop_token_ids else "length",
    )
