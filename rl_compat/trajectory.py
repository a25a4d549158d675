"""The records of one rollout: prompts in, trajectories out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort"]
"an end token or a stop string; the limit; ended by the caller"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One row of the data, ready to generate from."""

    token_ids: tuple[int, ...]
    text: str
    "the prompt as the model sees it, template applied"
    data_source: str = ""
    ground_truth: Any = None
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    row: int = 0
    "position in the dataset"
    messages: str | Sequence[Mapping[str, Any]] | None = None
    "the conversation before the template, for models with another template; None if only `text` is known"
    tools: Sequence[Mapping[str, Any]] = ()
    "functions that the assistant may call, in OpenAI's form"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One response and its record from the sampler. All tuples except the prompt have one entry per response token."""

    prompt: Prompt
    group: int
    "number of the prompt occurrence in the run, shared by all responses to it and no others"
    response_ids: tuple[int, ...]
    "including the end token if the model produced one"
    rollout_logprobs: tuple[float, ...]
    "log-probability of each response token under the sampling temperature, before top-k and top-p"
    finish_reason: FinishReason
    policy_versions: tuple[int, ...] = ()
    "version of the weights that drew each token; empty where unknown"
    response_mask: tuple[bool, ...] = ()
    "False on tokens that the policy did not write, such as the output of a tool; empty where it wrote all of them"

    def __post_init__(self) -> None:
        num_tokens = len(self.response_ids)
        assert len(self.rollout_logprobs) == num_tokens
        assert len(self.policy_versions) in (0, num_tokens)
        assert len(self.response_mask) in (0, num_tokens)

    @property
    def num_policy_tokens(self) -> int:
        """The number of response tokens that the policy wrote."""
        return sum(self.response_mask) if self.response_mask else len(self.response_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedResponse:
    """A response that has ended while others of its call go on."""

    place: int
    "among the responses of the call"
    trajectory: Trajectory
    text: Callable[[], str]
    "decodes it"
