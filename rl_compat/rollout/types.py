"""Inputs and outputs of rollout engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rl_compat.config.types import SamplingConfig
from rl_compat.trajectory import FinishReason

Progress = Callable[[int], bool | None]
Decode = Callable[[Sequence[int]], str]
"token ids to their text, special tokens included"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(SamplingConfig):
    """How tokens are sampled. Engines ignore the model's `generation_config`.

    A temperature of 0 is greedy; the log-probabilities are then those at temperature 1.
    """

    max_new_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    "token ids that end a response and are part of it"
    seed: int | None = None
    "determines every draw, together with the prompt ids and the number of the copy; None takes a seed from torch"
    raw_logprobs: bool = False
    "also return log-probabilities at temperature 1"

    @property
    def draw_settings(self) -> tuple[float, float, int, float, bool]:
        """The settings that all sequences of a decode step share."""
        return (self.temperature, self.top_p, self.top_k, self.min_p, self.raw_logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One response to generate."""

    prompt_ids: Sequence[int]
    params: SamplingParams
    copy: int = 0
    "index among the responses to this prompt; copies of a prompt draw different tokens with the same seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One generated response. All tuples have one entry per token."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    "log-probabilities under the tempered softmax over the whole vocabulary"
    finish_reason: FinishReason
    raw_logprobs: tuple[float, ...] = ()
    "log-probabilities at temperature 1; empty unless requested"
    policy_versions: tuple[int, ...] = ()
    "version of the policy that drew each token"
