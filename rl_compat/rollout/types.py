"""Inputs and outputs of rollout engines, and the search for stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rl_compat.config.types import SamplingConfig
from rl_compat.errors import ConfigError
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


_MARGIN = 8
"tokens decoded before the new ones: a character may span several tokens"


class StopStrings:
    """Searches the decoded tail of a response for strings."""

    def __init__(self, strings: Sequence[str], decode: Decode) -> None:
        assert strings and all(strings)
        self._strings = tuple(strings)
        self._decode = decode
        self._reach = max(len(text.encode()) for text in strings) + _MARGIN

    def end(self, token_ids: Sequence[int], *, num_checked: int) -> int | None:
        """The length of a response that ends with the first token that completes a string, None when none does.

        The first `num_checked` tokens are known to complete none.
        """
        start = max(0, num_checked - self._reach)
        tail = list(token_ids[start:])
        if not self._found(tail):
            return None
        counts = range(num_checked - start + 1, len(tail) + 1)
        return next((start + count for count in counts if self._found(tail[:count])), None)

    def _found(self, token_ids: Sequence[int]) -> bool:
        text = self._decode(token_ids)
        return any(string in text for string in self._strings)


def stop_strings(params: SamplingParams, decode: Decode | None) -> StopStrings | None:
    """A search for the stop strings of a request, None without any. Raises ConfigError if there is no tokenizer."""
    if not params.stop_strings:
        return None
    if decode is None:
        raise ConfigError("stop strings need a tokenizer to decode with", hint="pass `decode` to the engine")
    return StopStrings(params.stop_strings, decode)
