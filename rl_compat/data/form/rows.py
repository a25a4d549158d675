"""Rows before tokenization, one dataclass per task: prompts, supervised, preference pairs and labelled responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ChatMessages = list[dict[str, Any]]
"turns with `role` and `content`"

ToolSchemas = tuple[dict[str, Any], ...]
"functions that the assistant may call, in OpenAI's form"

Text = str | ChatMessages
"""A prompt: the text of one user turn, or the messages before the response. A response: the text of one assistant turn,
or messages, of which the assistant turns are the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    prompt: Text
    "empty for plain text, which gets no chat template"
    tools: ToolSchemas = ()
    data_source: str = ""
    row: int = 0
    "position in the dataset, over all files, from 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow(_Row):
    """A prompt for reinforcement learning, with what the reward needs."""

    ground_truth: Any = None
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    "the fields of the column `extra_info`, and every other column under its name"


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedRow(_Row):
    """A prompt and the response to imitate."""

    response: Text
    "messages begin with an assistant turn and may continue with further turns"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceRow(_Row):
    """A prompt with a chosen and a rejected response."""

    chosen: Text
    rejected: Text
    margin: float | None = None
    "reward difference between chosen and rejected, where the data has it"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRow(SupervisedRow):
    """A prompt, a response, and whether the response is desirable."""

    label: bool


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
