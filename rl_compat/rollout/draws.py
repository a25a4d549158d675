"""Sampling of a decoder: from logits to tokens and log-probabilities on the device, without synchronization."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from rl_compat.rollout.kernels.cuda_kernels import Kernels
from rl_compat.rollout.sampling import draw, raw_logprobs
from rl_compat.rollout.types import SamplingParams

_LOWEST = -3.0e38
_MOST_TOKENS = 1024 * 1024


class Draw(Protocol):
    def __call__(
        self, logits: Tensor, uniform: Tensor, params: SamplingParams, *, num_valid_tokens: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [B, V] and numbers [B] to tokens, log-probabilities, and those at temperature 1, each [B].

        The last are valid only when `params` request them.
        """
        ...


def plain_draw(
    logits: Tensor, uniform: Tensor, params: SamplingParams, *, num_valid_tokens: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draws with PyTorch's operations."""
    tokens, logprobs = draw(
        logits,
        uniform,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        num_valid_tokens=num_valid_tokens,
    )
    again = params.raw_logprobs and params.temperature not in (0.0, 1.0)
    return tokens, logprobs, raw_logprobs(logits, tokens) if again else logprobs


class FusedDraw:
    """Draws with one kernel, unless top-k or top-p need a sorted vocabulary."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def __call__(
        self, logits: Tensor, uniform: Tensor, params: SamplingParams, *, num_valid_tokens: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, vocab = logits.shape
        if params.top_k > 0 or params.top_p < 1.0 or logits.dtype != torch.float32 or vocab > _MOST_TOKENS:
            return plain_draw(logits, uniform, params, num_valid_tokens=num_valid_tokens)
        tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
        logprobs, raw = torch.empty(2, rows, device=logits.device)
        arguments = (
            logits,
            uniform,
            tokens,
            logprobs,
            raw,
            vocab,
            vocab if num_valid_tokens is None else min(num_valid_tokens, vocab),
            1.0 / params.temperature if params.temperature > 0 else 0.0,
            math.log(params.min_p) if params.min_p > 0 else _LOWEST,
        )
        self._kernels.launch("draw", (rows, 1), 1024, arguments)
        return tokens, logprobs, raw
