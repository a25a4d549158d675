"""Conversations as tokens, and the tokens that are learned: the assistant turns with their end tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from rl_compat.data.encode.prompts import EncodingError, PromptEncoder, Render, check_dropped
from rl_compat.data.form.rows import ChatMessages, Text, ToolSchemas, prompt_messages, response_messages
from rl_compat.errors import ModelError
from rl_compat.units import counted

REWRITES = "template_rewrites"
APART = "tokens_across"
NOTES = {
    REWRITES: "the template changes earlier turns when a conversation goes on: in {rows} each response is a separate "
    "example after the prompt that the template gives for it",
    APART: "a token spans the end of the prompt: in {rows} prompt and response are tokenized separately, as in rollout",
}


class ConversationEncoder(PromptEncoder, Protocol):
    """Renders messages with the chat template, and tokenizes text."""

    @property
    def stop_token_ids(self) -> Collection[int]: ...

    @property
    def end_token_id(self) -> int | None: ...

    def render(self, messages: ChatMessages, *, opens_response: bool, tools: ToolSchemas = ()) -> str: ...

    def tokenize(self, text: str, *, is_whole: bool = False) -> list[int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A prompt and its response as ids."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    learned: tuple[bool, ...]
    "for each response token; False on turns of others between the assistant turns"

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(slots=True)
class Conversations:
    """Encodes conversations with one template, and counts the unusual ones."""

    chat: ConversationEncoder
    counts: Counter[str] = field(default_factory=Counter)

    def examples(self, prompt: Text, response: Text, tools: ToolSchemas = ()) -> list[Example]:
        """One example, or one for each assistant turn where the template rewrites earlier turns.

        Raises EncodingError for a response without tokens and for messages that the template refuses or drops.
        """
        before, turns = prompt_messages(prompt), _to_last_of_assistant(response_messages(response))
        try:
            spans = self._spans(before, turns, tools)
            if spans is not None:
                return [self._joined(spans)]
            self.counts[REWRITES] += 1
            numbers = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"]
            return [self._alone([*before, *turns[:number]], turns[number], tools) for number in numbers]
        except ModelError as error:
            raise EncodingError("template-error", error.message, hint=error.hint) from error

    def plain_text(self, text: str) -> Example:
        """A text without turns; everything after its first token is learned, including an end token."""
        ids = self.chat.tokenize(text, is_whole=True)
        if ids and ids[-1] not in self.chat.stop_token_ids:
            ids += _end(self.chat)
        if len(ids) < 2:
            raise EncodingError(
                "no-tokens", "the text has fewer than two tokens", hint="remove the row: it has no token to learn"
            )
        return Example(prompt_ids=(ids[0],), response_ids=tuple(ids[1:]), learned=(True,) * (len(ids) - 1))

    def whole(self, prompt: Text, response: Text, tools: ToolSchemas = ()) -> list[int]:
        """The ids of a whole conversation with its end. Raises EncodingError."""
        if prompt == "" and isinstance(response, str):
            return self.chat.tokenize(response, is_whole=True)
        messages = [*prompt_messages(prompt), *response_messages(response)]
        try:
            return self.chat.tokenize(self._written(messages, tools))
        except ModelError as error:
            raise EncodingError("template-error", error.message, hint=error.hint) from error

    def notes(self) -> list[str]:
        """Notes about unusual conversations."""
        return [NOTES[kind].format(rows=counted(count, "row")) for kind, count in self.counts.items()]

    def _written(self, messages: ChatMessages, tools: ToolSchemas) -> str:
        """The text of a whole conversation. Raises EncodingError where the template drops a part."""
        render: Render = lambda turns, given: self.chat.render(turns, opens_response=False, tools=given)  # noqa: E731
        text = render(messages, tools)
        check_dropped(text, render, messages, tools)
        return text

    def _spans(self, before: ChatMessages, turns: ChatMessages, tools: ToolSchemas) -> list[tuple[str, str]] | None:
        """The text before each assistant turn, and its own; None where they are not parts of the whole text."""
        whole = self._written([*before, *turns], tools)
        spans, position = [], 0
        for number, turn in enumerate(turns):
            if turn["role"] != "assistant":
                continue
            opened = self.chat.render([*before, *turns[:number]], opens_response=True, tools=tools)
            closed = whole
            if number + 1 < len(turns):
                closed = self.chat.render([*before, *turns[: number + 1]], opens_response=False, tools=tools)
            if not (closed.startswith(opened) and whole.startswith(closed) and len(opened) >= position):
                return None
            spans.append((whole[position : len(opened)], closed[len(opened) :]))
            position = len(closed)
        return spans

    def _joined(self, spans: Sequence[tuple[str, str]]) -> Example:
        """One example from alternating given and learned texts."""
        ids, learned = self._tokens(spans)
        start = learned.index(True) if True in learned else len(learned)
        last = len(learned) - learned[::-1].index(True) if True in learned else start
        if start == last or all(token in self.chat.stop_token_ids for token in ids[start:last]):
            raise EncodingError("no-tokens", "the response is empty", hint="remove the row: it has no token to learn")
        return Example(
            prompt_ids=tuple(ids[:start]), response_ids=tuple(ids[start:last]), learned=tuple(learned[start:last])
        )

    def _tokens(self, spans: Sequence[tuple[str, str]]) -> tuple[list[int], list[bool]]:
        """Ids, and whether each is learned. Tokenized as a whole where no token spans a boundary."""
        pieces = [text for span in spans for text in span]
        parts = self._split(pieces)
        if parts is None:
            self.counts[APART] += 1
            parts = [self.chat.tokenize(piece) for piece in pieces]
        ids: list[int] = []
        learned: list[bool] = []
        for number, part in enumerate(parts):
            ids += part
            learned += self._learned(part) if number % 2 else [False] * len(part)
        if learned and not any(token in self.chat.stop_token_ids for token in parts[-1]):
            return self._ended(ids, learned, pieces[-1], len(parts[-1]))
        return ids, learned

    def _split(self, pieces: Sequence[str]) -> list[list[int]] | None:
        """The ids of the joined pieces, piece by piece; None where a token spans two of them."""
        whole = self.chat.tokenize("".join(pieces))
        ends, text = [0], ""
        for piece in pieces[:-1]:
            text += piece
            beginning = self.chat.tokenize(text)
            if whole[: len(beginning)] != beginning:
                return None
            ends.append(len(beginning))
        ends.append(len(whole))
        return [whole[start:end] for start, end in pairwise(ends)]

    def _learned(self, part: Sequence[int]) -> list[bool]:
        """A turn up to its end token; the model never generates what the template writes after it."""
        ends = [index for index, token in enumerate(part) if token in self.chat.stop_token_ids]
        last = ends[-1] + 1 if ends else len(part)
        return [index < last for index in range(len(part))]

    def _ended(self, ids: list[int], learned: list[bool], last_piece: str, length: int) -> tuple[list[int], list[bool]]:
        """With an end token in place of trailing white space, where the template writes no end token."""
        kept = self.chat.tokenize(last_piece.rstrip())
        if length and ids[-length:][: len(kept)] == kept:
            ids, learned = ids[: len(ids) - length + len(kept)], learned[: len(learned) - length + len(kept)]
        end = _end(self.chat)
        return ids + end, learned + [True] * len(end)

    def _alone(self, before: ChatMessages, turn: dict[str, Any], tools: ToolSchemas) -> Example:
        """One turn after the prompt that the template gives for it."""
        opened = self.chat.render(before, opens_response=True, tools=tools)
        closed = self.chat.render([*before, turn], opens_response=False, tools=tools)
        if closed.startswith(opened):
            return self._joined([(opened, closed[len(opened) :])])
        content = turn.get("content")
        if not isinstance(content, str):
            raise EncodingError(
                "template-drops",
                "the template does not render a response without text after its prompt",
                hint="remove the row, or set `model.chat_template`",
            )
        return self._joined([(opened, content)])


def learn_everything(example: Example) -> Example:
    """The same tokens; all but the first are learned."""
    ids = (*example.prompt_ids, *example.response_ids)
    return Example(prompt_ids=ids[:1], response_ids=ids[1:], learned=(True,) * (len(ids) - 1))


def _to_last_of_assistant(turns: ChatMessages) -> ChatMessages:
    spoken = [number for number, turn in enumerate(turns) if turn["role"] == "assistant"]
    if not spoken:
        raise EncodingError("unusable", "the response has no assistant turn", hint="remove the row, or fix its roles")
    return turns[: spoken[-1] + 1]


def _end(chat: ConversationEncoder) -> list[int]:
    return [] if chat.end_token_id is None else [chat.end_token_id]
