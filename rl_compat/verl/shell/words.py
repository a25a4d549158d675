"""The tokens of a shell script with their lines; quotes and expansions are kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rl_compat.errors import ConfigError

OPERATORS = ("&&", "||", ";;", "|&", ";", "&", "|", "(", ")", "\n")
REDIRECTION = re.compile(r"(\d*|&)(<<<|<<-|<<|>>|>\||>&|<&|<>|>|<)[ \t]*")
ARRAY = re.compile(r"[A-Za-z_]\w*\+?=$")


@dataclass(frozen=True, slots=True)
class Token:
    """A word or an operator; a whole `((…))` is one token."""

    text: str
    line: int
    is_operator: bool = False
    is_input: bool = False
    "a word with the standard input of its command: a here-document, a here-string or `< <(…)`"


def tokenize(text: str, name: str) -> Sequence[Token]:
    """The tokens of a script without comments and other redirections. Raises ConfigError."""
    return _Reader(text.replace("\r\n", "\n"), name).tokens()


def closing(text: str, start: int) -> int:
    """The position after the quote, bracket or backtick that closes the one at `start`. Raises ValueError."""
    opened = text[start]
    if opened == "'" and "'" in text[start + 1 :]:
        return text.index("'", start + 1) + 1
    position = start + 1
    end = {"(": ")", "{": "}"}.get(opened, opened)
    while position < len(text) and opened != "'":
        character = text[position]
        if character == "\\":
            position += 2
        elif character == end:
            return position + 1
        elif opened == '"' and character in "('{":
            position += 1
        elif opened == "(" and character == "#" and text[position - 1] in " \t\n(;":
            position += len(text[position:].partition("\n")[0])
        elif character in "\"'`" or (character in "({" and (opened == character or text[position - 1] == "$")):
            position = closing(text, position)
        elif character == "$" and text[position + 1 : position + 2] in ("(", "{"):
            position = closing(text, position + 1)
        else:
            position += 1
    raise ValueError(f"`{opened}` is not closed")


class _Reader:
    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._name = name
        self._position = 0
        self._tokens: list[Token] = []
        self._documents: list[tuple[int, str, bool]] = []
        "those that the current line opens: the position of the token, the end mark, and whether tabs are cut off"

    def tokens(self) -> Sequence[Token]:
        while self._position < len(self._text):
            self._step()
        return self._tokens

    def _step(self) -> None:
        text, position = self._text, self._position
        character = text[position]
        if text.startswith("\\\n", position):
            self._position += 2
        elif character in " \t":
            self._position += 1
        elif character == "#":
            end = text.find("\n", position)
            self._position = len(text) if end < 0 else end
        elif text.startswith("((", position) and self._closes_twice(position):
            self._add(text[position : closing(text, position)], is_operator=True)
        elif text.startswith(("<(", ">("), position):
            self._end = self._closing(position + 1)
            self._add(text[position : self._end])
        elif character in "<>" and self._is_in_test():
            self._end = position + 1
            self._add(character)
        elif redirection := REDIRECTION.match(text, position):
            self._redirect(redirection)
        elif operator := next((mark for mark in OPERATORS if text.startswith(mark, position)), None):
            self._add(operator, is_operator=True)
            if operator == "\n":
                self._skip_documents()
        else:
            self._add(self._word())

    def _word(self) -> str:
        """The text up to the next blank or operator outside of quotes and brackets."""
        text, start, position = self._text, self._position, self._position
        parts: list[str] = []
        while position < len(text) and text[position] not in " \t\n;&|<>":
            character = text[position]
            if text.startswith("\\\n", position):
                parts.append(text[start:position])
                start = position = position + 2
            elif character == "\\":
                position += 2
            elif character in "\"'`" or (character == "$" and text[position + 1 : position + 2] in ("(", "{", "'")):
                position = self._closing(position + (character == "$"))
            elif character == "(" and ARRAY.search("".join(parts) + text[start:position]):
                position = self._closing(position)
            elif character in "()":
                break
            else:
                position += 1
        self._end = position
        return "".join(parts) + text[start:position]

    def _is_in_test(self) -> bool:
        """Whether the next token stands between `[[` and `]]`."""
        opened = (token.text == "[[" for token in reversed(self._tokens) if token.text in ("[[", "]]"))
        return next(opened, False)

    def _redirect(self, redirection: re.Match[str]) -> None:
        line, operation = self._line(self._position), redirection.group(2)
        self._position = redirection.end()
        if self._text.startswith(("<(", ">("), self._position):
            self._end = self._closing(self._position + 1)
            word = self._text[self._position : self._end]
        else:
            word = self._word()
        self._position = self._end
        if operation in ("<<", "<<-"):
            self._documents.append((len(self._tokens), word, operation == "<<-"))
        if operation == "<" and word.startswith("<("):
            self._tokens.append(Token(text=f'"${word[1:]}"', line=line, is_input=True))
        elif operation in ("<<", "<<-", "<<<"):
            self._tokens.append(Token(text=word, line=line, is_input=True))

    def _skip_documents(self) -> None:
        """Put the here-documents that the finished line opened into their tokens, as quoted words."""
        for place, mark, dedented in self._documents:
            end, lines = re.sub(r"[\"'\\]", "", mark), []
            while self._position < len(self._text):
                stop = self._text.find("\n", self._position)
                stop = len(self._text) if stop < 0 else stop
                line = self._text[self._position : stop].lstrip("\t" if dedented else "")
                self._position = stop + 1
                if line == end:
                    break
                lines.append(line)
            body = "\n".join(lines)
            quoted = (
                '"{}"'.format(body.replace('"', '\\"')) if end == mark else "'{}'".format(body.replace("'", "'\\''"))
            )
            self._tokens[place] = replace(self._tokens[place], text=quoted)
        self._documents = []

    def _closes_twice(self, position: int) -> bool:
        end = self._closing(position)
        return self._text[end - 2 : end] == "))"

    def _closing(self, position: int) -> int:
        try:
            return closing(self._text, position)
        except ValueError as error:
            fact = f"`{self._name}` line {self._line(position)}: {error}"
            raise ConfigError(fact, hint="is the script whole?") from error

    def _add(self, text: str, *, is_operator: bool = False) -> None:
        self._tokens.append(Token(text=text, line=self._line(self._position), is_operator=is_operator))
        self._position = self._position + len(text) if is_operator else self._end

    def _line(self, position: int) -> int:
        return self._text.count("\n", 0, position) + 1
