"""What every rollout engine can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rl_compat.trajectory import FinishReason

Progress = Callable[[int], bool | None]
Decode = Callable[[Sequence[int]], str]
"token ids to their text, special tokens included"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn. Nothing is ever added from a model's `generation_config`."""

    max_new_tokens: int
    temperature: float = 1.0
    "0 is greedy; log-probabilities are then those at temperature 1"
    top_p: float = 1.0
    top_k: int = 0
    "0 keeps all tokens"
    min_p: float = 0.0
    "keeps tokens at least so likely compared with the most likely one, before top_k and top_p"
    stop_token_ids: tuple[int, ...] = ()
    "any of them ends a response and is part of it"
    stop_strings: tuple[str, ...] = ()
    "a response ends with the token that completes any of them in its text"
    seed: int | None = None
    "fixes every draw, with the ids of a prompt and which of its copies is answered; None takes one from torch"
    raw_logprobs: bool = False
    "give log-probabilities at temperature 1 too"


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One generated response: ids, their log-probabilities under the tempered softmax, and why it ended."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    raw_logprobs: tuple[float, ...] = ()
    "at temperature 1, when they were asked for"


class RolloutEngine(Protocol):
    """Generates from weights that a trainer changes."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        group_size: int = 1,
        on_progress: Progress | None = None,
    ) -> list[list[Response]]:
        """`group_size` responses for each prompt, in the order of the prompts. Raises DataError for an empty prompt.

        `on_progress` receives the number of finished responses, and aborts the call by returning False.
        """
        ...

    def abort(self) -> None:
        """End the call that is under way, from any thread: its unfinished responses come back as they are."""
        ...

    def update_weights(self) -> None:
        """Make the trainer's newest weights visible to the next call; free when the tensors are shared."""
        ...

    def sleep(self) -> None:
        """Give back all device memory that is not the trainer's own."""
        ...

    def wake(self) -> None:
        """Take back what `sleep` gave away. `generate` wakes the engine by itself."""
        ...
