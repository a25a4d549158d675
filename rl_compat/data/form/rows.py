"""Rows of each kind of training before they are tokenised: for reinforcement learning, imitation and preferences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ChatMessages = list[dict[str, Any]]
"turns with `role` and `content`"

Text = str | ChatMessages
"""As a prompt: one user turn, or the messages before the response. As a response: one assistant turn, or messages of
which those of the assistant are the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    """A prompt that the model answers itself, and what its answer is measured by."""

    prompt: Text
    data_source: str = ""
    ground_truth: Any = None
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    "the row's `extra_info`, and every other column under its name"
    row: int = 0
    "position in the dataset, over all files, from 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedRow:
    """A prompt and the response to imitate."""

    prompt: Text
    "an empty text for plain text without turns, which gets no template"
    response: Text
    "messages begin with an assistant's and may go on with further turns"
    data_source: str = ""
    row: int = 0

    @property
    def is_plain_text(self) -> bool:
        return self.prompt == "" and isinstance(self.response, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceRow:
    """A prompt and two responses, of which the first is the better."""

    prompt: Text
    "an empty text when the two responses are whole texts without turns"
    chosen: Text
    rejected: Text
    margin: float | None = None
    "by how much the chosen one is better, where the data says so"
    data_source: str = ""
    row: int = 0

    @property
    def is_plain_text(self) -> bool:
        return self.prompt == "" and isinstance(self.chosen, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRow:
    """A prompt, a response and whether it is a good one."""

    prompt: Text
    response: Text
    label: bool
    data_source: str = ""
    row: int = 0

    @property
    def is_plain_text(self) -> bool:
        return self.prompt == "" and isinstance(self.response, str)


def prompt_messages(prompt: Text) -> ChatMessages:
    """The prompt as turns: a text is one user turn, an empty text none."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}] if prompt else []
    return [dict(message) for message in prompt]


def response_messages(response: Text) -> ChatMessages:
    """The response as turns: a text is one assistant turn."""
    if isinstance(response, str):
        return [{"role": "assistant", "content": response}]
    return [dict(message) for message in response]
