"""What a rollout engine receives and returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rl_compat.trajectory import FinishReason

Progress = Callable[[int], bool | None]
Decode = Callable[[Sequence[int]], str]
"token ids to their text, special tokens included"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are sampled. No engine adds settings of a model's `generation_config`."""

    max_new_tokens: int
    temperature: float = 1.0
    "0 is greedy; log-probabilities are then those at temperature 1"
    top_p: float = 1.0
    top_k: int = 0
    "0 keeps all tokens"
    min_p: float = 0.0
    "keeps tokens at least this likely relative to the most likely one; applied before top_k and top_p"
    stop_token_ids: tuple[int, ...] = ()
    "any of them ends a response and is part of it"
    stop_strings: tuple[str, ...] = ()
    "a response ends with the token that completes any of them in its text"
    seed: int | None = None
    "with the ids of a prompt and the number of its copy, determines every draw; None takes a seed from torch"
    raw_logprobs: bool = False
    "also return log-probabilities at temperature 1"

    @property
    def draw_settings(self) -> tuple[float, float, int, float, bool]:
        """The settings that sequences of one decode step share."""
        return (self.temperature, self.top_p, self.top_k, self.min_p, self.raw_logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One response to generate."""

    prompt_ids: Sequence[int]
    params: SamplingParams
    copy: int = 0
    "the how-manieth response to this prompt: copies of a prompt draw different tokens from one seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One generated response. All tuples have one entry per token."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    "under the tempered softmax over the whole vocabulary"
    finish_reason: FinishReason
    raw_logprobs: tuple[float, ...] = ()
    "at temperature 1; empty unless requested"
    policy_versions: tuple[int, ...] = ()
    "version of the weights that drew each token"
