"""Log-probabilities and entropy of the distribution that was sampled from: softmax(logits / temperature)."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_compat.algorithms.precision import at_least_float32


def token_logprobs(logits: Tensor, token_ids: Tensor, *, temperature: float) -> Tensor:
    """Log-probability [...] of token_ids [...] under logits [..., V] at the temperature, in float32."""
    scaled = _scaled(logits, temperature)
    chosen = scaled.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    return chosen - scaled.logsumexp(-1)


def entropy(logits: Tensor, *, temperature: float) -> Tensor:
    """Entropy [...] in nats of the distribution of logits [..., V] at the temperature, in float32.

    Logits of -inf are tokens of probability 0 and add nothing.
    """
    scaled = _scaled(logits, temperature)
    finite = scaled.masked_fill(scaled == -torch.inf, 0)
    return scaled.logsumexp(-1) - (scaled.softmax(-1) * finite).sum(-1)


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    assert temperature > 0, "a temperature of 0 has no log-probabilities"
    return at_least_float32(logits) / temperature
