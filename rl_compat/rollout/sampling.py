"""Sampling of the next token: tempered softmax, min-p, top-k, top-p, and the log-probability that training uses.

Random numbers depend only on the seed, the prompt, its copy and the step, not on the rest of the batch.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_compat.rollout.types import SamplingParams

_BLOCK = 256
_BELOW_ONE = 1.0 - 2.0**-50


def draw(
    logits: Tensor,
    uniform: Tensor | None,
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    num_valid_tokens: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Logits [B, V] and uniform numbers [B] float64 in [0, 1) to token ids [B] int64 and log-probabilities [B] float32.

    The log-probability is that of the softmax of `logits / temperature` over the whole vocabulary: filters and
    `num_valid_tokens` decide which token is drawn and never change it. At temperature 0 the token is the argmax, its
    log-probability that at temperature 1, and `uniform` may be None. Ids from `num_valid_tokens` on are never drawn.
    """
    scaled = logits.float()
    if temperature > 0 and temperature != 1.0:
        scaled = scaled / temperature
    probabilities = scaled.softmax(dim=-1)
    candidates = scaled[:, :num_valid_tokens]
    if temperature > 0:
        assert uniform is not None
        weights = probabilities[:, :num_valid_tokens]
        if top_k > 0 or top_p < 1.0 or min_p > 0.0:
            kept = keep_top(candidates, top_k=top_k, top_p=top_p, min_p=min_p)
            weights = weights.masked_fill(kept == -torch.inf, 0.0)
        tokens = _inverse_cdf(weights, uniform).clamp_(max=weights.shape[1] - 1)
    else:
        tokens = candidates.argmax(dim=-1)
    return tokens, probabilities.gather(1, tokens[:, None]).squeeze(1).log()


def raw_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities [B] at temperature 1 of tokens [B] under logits [B, V], in fp32."""
    wide = logits.float()
    return wide.gather(1, tokens[:, None]).squeeze(1) - wide.logsumexp(dim=-1)


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


def keep_top(scaled: Tensor, *, top_k: int, top_p: float, min_p: float = 0.0) -> Tensor:
    """Logits [B, V] with everything outside of the filters at -inf.

    `min_p` keeps tokens that are at least this likely relative to the most likely one; then come the top k, and of
    those the nucleus (Holtzman et al., 2020): the shortest prefix of the sorted tokens whose probabilities reach
    `top_p`. Ties with the last kept token are kept too. The most likely token always stays.
    """
    if min_p > 0.0:
        threshold = scaled.amax(dim=-1, keepdim=True) + math.log(min_p)
        scaled = scaled.masked_fill(scaled < threshold, -torch.inf)
    if 0 < top_k < scaled.shape[1]:
        threshold = scaled.topk(top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < threshold, -torch.inf)
    if top_p < 1.0:
        ordered = scaled.sort(dim=-1, descending=True).values
        probabilities = ordered.softmax(dim=-1)
        outside = probabilities.cumsum(dim=-1) - probabilities >= top_p
        outside[:, 0] = False
        threshold = ordered.masked_fill(outside, torch.inf).amin(dim=-1, keepdim=True)
        scaled = scaled.masked_fill(scaled < threshold, -torch.inf)
    return scaled


def _inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first index whose running sum exceeds `uniform` of the total: weights [B, V], uniform [B], index [B].

    It first searches the sums of blocks and then one block. Running sums are float64, so that rare tokens keep their
    probability, without a float64 copy of the vocabulary. Nothing waits for the device.
    """
    missing = -weights.shape[1] % _BLOCK
    blocks = (F.pad(weights, (0, missing)) if missing else weights).unflatten(1, (-1, _BLOCK))
    sums = blocks.sum(dim=-1).double()
    block, rest = _search(sums, uniform[:, None] * sums.sum(dim=-1, keepdim=True))
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK)).squeeze(1)
    offset, _ = _search(inside.double(), rest)
    return (block * _BLOCK + offset).squeeze(1)


def _search(weights: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The first index at which the running sum of weights [B, N] exceeds target [B, 1], and the remaining target there.

    The target is kept below the total, so that rounding never picks a weight of zero.
    """
    cumulative = weights.cumsum(dim=-1)
    target = torch.minimum(target, cumulative[:, -1:] * _BELOW_ONE)
    index = torch.searchsorted(cumulative, target, right=True).clamp(max=weights.shape[1] - 1)
    return index, target - (cumulative.gather(1, index) - weights.gather(1, index))


_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def response_keys(requests: Sequence[tuple[Sequence[int], int]]) -> list[int]:
    """A number below 2**63 for each (prompt ids, copy), which depends only on these two."""
    digests: dict[tuple[int, ...], bytes] = {}
    keys = []
    for ids, copy in requests:
        prompt = tuple(ids)
        if prompt not in digests:
            digests[prompt] = blake2b(struct.pack(f"<{len(prompt)}q", *prompt), digest_size=16).digest()
        content = digests[prompt] + struct.pack("<q", copy)
        keys.append(int.from_bytes(blake2b(content, digest_size=8).digest(), "little") >> 1)
    return keys


def uniforms(seeds: Tensor, keys: Tensor, steps: Tensor) -> Tensor:
    """Seeds, keys and steps [B] int64 to numbers [B] float64 in [0, 1): SplitMix64 (Steele, Lea and Flood 2014), twice.

    Pass a seed of any size as `signed64(seed)`.
    """
    streams = _mix(keys * _GOLDEN + seeds)
    bits = _mix(streams + (steps + 1) * _GOLDEN)
    return _shifted(bits, 11).double() * 2.0**-53


def call_seed(seed: int | None) -> int:
    """The seed of one call; drawn from torch's generator when None."""
    return int(torch.randint(2**62, (1,))) if seed is None else seed


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shifted(state, 30)) * _FIRST
    state = (state ^ _shifted(state, 27)) * _SECOND
    return state ^ _shifted(state, 31)


def _shifted(state: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's own is arithmetic."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def signed64(number: int) -> int:
    """The 64-bit two's complement of an integer of any size."""
    low = number & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low
