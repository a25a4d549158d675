"""Log-probabilities of chosen tokens from `[chunk, V]` logits at a time, forward and backward.

With z = logits / temperature, the log-probability of token y is z_y - logsumexp(z) and the entropy is
logsumexp(z) - sum(softmax(z) * z). Only the logits of the last chunk are kept for backward, which starts with that
chunk and recomputes the others, so the logits of two chunks never exist at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_compat.models.files.storage import rounds_logits
from rl_compat.training.types import Statistic, TokenOutputs


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitRule:
    """How the output of the head becomes logits, and the sampling temperature."""

    temperature: float = 1.0
    scale: float = 1.0
    "factor of the head's output (Granite, Cohere)"
    softcap: float | None = None
    "logits are `softcap * tanh(logits / softcap)` (Gemma)"

    def apply(self, output: Tensor) -> Tensor:
        """The head's output [n, V] as tempered logits in fp32, or float64 for float64."""
        logits = output if output.dtype == torch.float64 else output.float()
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits if self.temperature == 1.0 else logits / self.temperature

    def backward(self, grad: Tensor, logits: Tensor) -> Tensor:
        """The gradient of the head's output from that of the tempered logits, in place."""
        grad.div_(self.temperature)
        if self.softcap is not None:
            grad.mul_(1 - (logits * (self.temperature / self.softcap)).square_())
        return grad if self.scale == 1.0 else grad.mul_(self.scale)


class _Options(NamedTuple):
    rule: LogitRule
    chunk_tokens: int
    wanted: tuple[Statistic, ...]
    dtype: torch.dtype


def chunked_logprobs(
    hidden: Tensor,
    weight: Tensor,
    token_ids: Tensor,
    *,
    bias: Tensor | None = None,
    rule: LogitRule,
    chunk_tokens: int,
    wanted: tuple[Statistic, ...] = (),
) -> TokenOutputs:
    """Hidden [N, H], head weight [V, H] and bias [V], token ids [N] to log-probabilities and requested statistics.

    Products are in the dtype of autocast (fp32 under bf16) or of `hidden`; softmax statistics are fp32, or float64 for
    float64.
    """
    options = _Options(rule, chunk_tokens, wanted, _multiply_dtype(hidden))
    with torch.autocast(hidden.device.type, enabled=False):
        columns = _ChunkedLogprobs.apply(hidden, weight, bias, token_ids, options)
    return requested(columns, wanted)


def requested(columns: Sequence[Tensor], wanted: tuple[Statistic, ...]) -> TokenOutputs:
    """The three columns of `token_statistics`, with None for those that are not requested."""
    logprobs, entropy, squares = columns
    return TokenOutputs(
        logprobs, entropy if "entropy" in wanted else None, squares if "sum_pi_squared" in wanted else None
    )


def token_statistics(
    logits: Tensor, token_ids: Tensor, wanted: tuple[Statistic, ...] = ()
) -> tuple[Tensor, Tensor, Tensor]:
    """Tempered logits [n, V] and token ids [n] to the fields of TokenOutputs, zeros if not requested."""
    highest = logits.detach().amax(dim=-1, keepdim=True)
    powers = (logits - highest).exp_()
    total = powers.sum(dim=-1)
    log_normalizer = highest.squeeze(-1) + total.log()
    logprobs = logits.gather(-1, token_ids[:, None]).squeeze(-1) - log_normalizer
    entropy = squares = torch.zeros_like(logprobs)
    if "entropy" in wanted:
        entropy = log_normalizer - torch.linalg.vecdot(powers, logits) / total
    if "sum_pi_squared" in wanted:
        squares = (torch.linalg.vector_norm(powers.detach(), dim=-1) / total.detach()).square()
    return logprobs, entropy, squares


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, token_ids: Tensor, options: _Options
    ) -> tuple[Tensor, Tensor, Tensor]:
        rule, chunk_tokens, wanted, dtype = options
        ctx.save_for_backward(hidden, weight, bias, token_ids)
        ctx.options = options
        head = _Head(weight, bias, dtype)
        statistics_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        logprobs, entropy, squares = (
            torch.empty(len(token_ids), dtype=statistics_dtype, device=hidden.device) for _ in range(3)
        )
        logits = None
        for part in _chunks(len(token_ids), chunk_tokens):
            logits = None  # free it before the next one is allocated
            logits = rule.apply(head.output(hidden[part]))
            logprobs[part], entropy[part], squares[part] = token_statistics(logits, token_ids[part], wanted)
        ctx.last_logits = logits
        ctx.mark_non_differentiable(squares)
        ctx.set_materialize_grads(False)
        return logprobs, entropy, squares

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, token_ids = ctx.saved_tensors
        rule, chunk_tokens, _, dtype = ctx.options
        grad_logprobs, grad_entropy = grads[:2]
        if grad_logprobs is None:
            grad_logprobs = torch.zeros(len(token_ids), device=hidden.device)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        kept, ctx.last_logits = ctx.last_logits, None
        with torch.autocast(hidden.device.type, enabled=False):
            head = _Head(weight, bias, dtype)
            grad_hidden = torch.empty_like(hidden) if needs_hidden else None
            grad_weight = torch.zeros_like(weight, dtype=_sum_dtype(weight)) if needs_weight else None
            grad_bias = torch.zeros_like(bias, dtype=_sum_dtype(bias)) if needs_bias else None
            for part in reversed(_chunks(len(token_ids), chunk_tokens)):
                logits = rule.apply(head.output(hidden[part])) if kept is None else kept
                kept = None
                of_entropy = None if grad_entropy is None else grad_entropy[part]
                grad = _grad_logits(logits, token_ids[part], grad_logprobs[part], of_entropy)
                grad = rule.backward(grad, logits)
                if grad_bias is not None:
                    grad_bias += grad.sum(0)
                grad = grad.to(dtype)
                if grad_hidden is not None:
                    grad_hidden[part] = grad @ head.weight
                if grad_weight is not None:
                    _add_product(grad_weight, grad.T, hidden[part].to(dtype))
                del logits, grad
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
        )


class _Head:
    """The output matrix in the dtype of the matrix products."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.weight = weight.to(dtype)
        self.bias = None if bias is None else bias.to(dtype)

    def output(self, hidden: Tensor) -> Tensor:
        return torch.nn.functional.linear(hidden.to(self.weight.dtype), self.weight, self.bias)


def _multiply_dtype(hidden: Tensor) -> torch.dtype:
    """The dtype of the output layer's product: that of autocast or of `hidden`, but never bf16, which is too coarse."""
    device_type = hidden.device.type
    if rounds_logits(device_type):
        return torch.float32
    if torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return hidden.dtype


def _chunks(num_tokens: int, chunk_tokens: int) -> list[slice]:
    return [slice(start, start + chunk_tokens) for start in range(0, num_tokens, chunk_tokens)]


def _grad_logits(logits: Tensor, token_ids: Tensor, grad_logprobs: Tensor, grad_entropy: Tensor | None) -> Tensor:
    """The gradient [n, V] of the tempered logits: g * (onehot - p) - h * p * (z - sum(p * z))."""
    probabilities = torch.softmax(logits, dim=-1)
    if grad_entropy is None:
        grad = probabilities.mul_(-grad_logprobs[:, None])
    else:
        mean_logit = (probabilities * logits).sum(-1, keepdim=True)
        factor = (logits - mean_logit).mul_(grad_entropy[:, None]).add_(grad_logprobs[:, None]).neg_()
        grad = probabilities.mul_(factor)
    return grad.scatter_add_(-1, token_ids[:, None], grad_logprobs[:, None].to(grad.dtype))


def _sum_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)
