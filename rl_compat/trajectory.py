"""The records of one rollout: prompts in, trajectories out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort"]
"an end token or a stop string; the limit; cut short by the caller"


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
    "what the row holds before any template, for a model with a template of its own; None where only `text` is known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One response with what the sampler knew when it drew it."""

    prompt: Prompt
    group: int
    "which prompt of the step: the same for all responses of one prompt occurrence"
    response_ids: tuple[int, ...]
    "the end token included when the model produced one"
    rollout_logprobs: tuple[float, ...]
    "log-probability of each response token under the sampling temperature, before top-k and top-p"
    finish_reason: FinishReason
    policy_version: int = 0

    def __post_init__(self) -> None:
        assert len(self.response_ids) == len(self.rollout_logprobs)
