"""Prompts with responses as tokens, and which of these are learned: the assistant's turns with their ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from rl_compat.data.form.rows import ChatMessages, Text, prompt_messages, response_messages
from rl_compat.errors import DataError, RLCompatError

REWRITES = "template_rewrites"
APART = "tokens_across"
NOTES = {
    REWRITES: "the template writes a conversation otherwise than it prompts for a response: in {rows} each response "
    "is learned after the prompt that the template makes for it",
    APART: "a token spans the end of the prompt: in {rows} prompt and response are tokenized apart, as in generation",
}


class ConversationEncoder(Protocol):
    """Writes messages as the model sees them, and texts as ids."""

    @property
    def stop_token_ids(self) -> Collection[int]: ...

    @property
    def end_token_id(self) -> int | None: ...

    def render(self, messages: ChatMessages, *, opens_response: bool) -> str: ...

    def tokenize(self, text: str, *, is_whole: bool = False) -> list[int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A prompt and what follows it."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    learned: tuple[bool, ...]
    "for each response token, False on what others say between the assistant's turns"

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(slots=True)
class Conversations:
    """Encodes conversations with one template and counts what was unusual about them."""

    chat: ConversationEncoder
    counts: Counter[str] = field(default_factory=Counter)

    def examples(self, prompt: Text, response: Text) -> list[Example]:
        """One example, or one for each turn of the assistant where the template rewrites earlier turns.

        Raises DataError for a response without tokens and where the template refuses the messages.
        """
        before, turns = prompt_messages(prompt), _to_last_of_assistant(response_messages(response))
        try:
            spans = self._spans(before, turns)
            if spans is not None:
                return [self._joined(spans)]
            self.counts[REWRITES] += 1
            numbers = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"]
            return [self._alone([*before, *turns[:number]], turns[number]) for number in numbers]
        except RLCompatError as error:
            raise DataError(error.message, hint=error.hint) from error

    def plain_text(self, text: str) -> Example:
        """A text without turns: everything after its first token is learned, and where it ends."""
        ids = self.chat.tokenize(text, is_whole=True)
        if ids and ids[-1] not in self.chat.stop_token_ids:
            ids += _end(self.chat)
        if len(ids) < 2:
            raise DataError("a text has a single token", hint="leave the row out, there is nothing to learn from it")
        return Example(prompt_ids=(ids[0],), response_ids=tuple(ids[1:]), learned=(True,) * (len(ids) - 1))

    def whole(self, prompt: Text, response: Text) -> list[int]:
        """A conversation as the template ends it, as ids."""
        if prompt == "" and isinstance(response, str):
            return self.chat.tokenize(response, is_whole=True)
        messages = [*prompt_messages(prompt), *response_messages(response)]
        try:
            return self.chat.tokenize(self.chat.render(messages, opens_response=False))
        except RLCompatError as error:
            raise DataError(error.message, hint=error.hint) from error

    def notes(self) -> list[str]:
        """What was unusual, in sentences."""
        return [NOTES[kind].format(rows=_rows(count)) for kind, count in self.counts.items()]

    def _spans(self, before: ChatMessages, turns: ChatMessages) -> list[tuple[str, str]] | None:
        """For each turn of the assistant the text before it and its own; None when these are no parts of the whole."""
        whole = self.chat.render([*before, *turns], opens_response=False)
        spans, position = [], 0
        for number, turn in enumerate(turns):
            if turn["role"] != "assistant":
                continue
            opened = self.chat.render([*before, *turns[:number]], opens_response=True)
            closed = whole
            if number + 1 < len(turns):
                closed = self.chat.render([*before, *turns[: number + 1]], opens_response=False)
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
        if start == last or not _says_something(ids[start:last], self.chat):
            raise DataError("the response is empty", hint="leave the row out, there is nothing to learn from it")
        return Example(
            prompt_ids=tuple(ids[:start]), response_ids=tuple(ids[start:last]), learned=tuple(learned[start:last])
        )

    def _tokens(self, spans: Sequence[tuple[str, str]]) -> tuple[list[int], list[bool]]:
        """Ids with what is learned of them. Tokenized as a whole where every boundary lies between two tokens."""
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
        """The ids of the joined pieces, piece by piece; None when a token spans two of them."""
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
        """A turn up to its end token; what a template writes after that is never generated."""
        ends = [index for index, token in enumerate(part) if token in self.chat.stop_token_ids]
        last = ends[-1] + 1 if ends else len(part)
        return [index < last for index in range(len(part))]

    def _ended(self, ids: list[int], learned: list[bool], last_piece: str, length: int) -> tuple[list[int], list[bool]]:
        """With an end token where the template writes none, in place of the space that it leaves after a turn."""
        kept = self.chat.tokenize(last_piece.rstrip())
        if length and ids[-length:][: len(kept)] == kept:
            ids, learned = ids[: len(ids) - length + len(kept)], learned[: len(learned) - length + len(kept)]
        end = _end(self.chat)
        return ids + end, learned + [True] * len(end)

    def _alone(self, before: ChatMessages, turn: dict[str, Any]) -> Example:
        """One turn after the prompt that the template makes for it: its text, and the end of a turn."""
        opened = self.chat.render(before, opens_response=True)
        closed = self.chat.render([*before, turn], opens_response=False)
        if closed.startswith(opened):
            return self._joined([(opened, closed[len(opened) :])])
        content = turn.get("content")
        if not isinstance(content, str):
            raise DataError(
                "the template does not write a response without text after its prompt",
                hint="leave the row out, or set `model.chat_template`",
            )
        return self._joined([(opened, content)])


def learn_everything(example: Example) -> Example:
    """The same tokens, all of them learned but the first."""
    ids = (*example.prompt_ids, *example.response_ids)
    return Example(prompt_ids=ids[:1], response_ids=ids[1:], learned=(True,) * (len(ids) - 1))


def _to_last_of_assistant(turns: ChatMessages) -> ChatMessages:
    spoken = [number for number, turn in enumerate(turns) if turn["role"] == "assistant"]
    if not spoken:
        raise DataError("the response has no turn of the assistant", hint="leave the row out, or mend its roles")
    return turns[: spoken[-1] + 1]


def _says_something(ids: Sequence[int], chat: ConversationEncoder) -> bool:
    return any(token not in chat.stop_token_ids for token in ids)


def _end(chat: ConversationEncoder) -> list[int]:
    return [] if chat.end_token_id is None else [chat.end_token_id]


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count} rows"
