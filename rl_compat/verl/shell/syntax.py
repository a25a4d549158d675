"""The grammar of shell scripts: parses text into commands with unexpanded words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rl_compat.errors import ConfigError
from rl_compat.verl.shell.words import Token, tokenize


@dataclass(frozen=True, slots=True, kw_only=True)
class Simple:
    """Words on a line: assignments, then a command and its arguments; `[[ … ]]` too."""

    words: Sequence[str]
    line: int
    input: str | None = None
    "its standard input as a word, where it stands in the script"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArithmeticCommand:
    """`(( … ))`."""

    text: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Commands joined by `&&`, `||` or `|`."""

    first: Node
    rest: Sequence[tuple[Literal["&&", "||", "|"], Node]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Negated:
    """`! command`."""

    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class If:
    branches: Sequence[tuple[Body, Body]]
    "conditions and their branches; `else` has an empty condition"
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    word: str
    arms: Sequence[tuple[Sequence[str], Body]]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class For:
    name: str
    words: Sequence[str] | None
    "None means the script's arguments"
    body: Body
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class While:
    condition: Body
    body: Body
    until: bool
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    name: str
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`{ …; }`, or `( … )`, which keeps its variables to itself."""

    body: Body
    subshell: bool
    input: str | None = None
    "its standard input as a word, where it stands in the script"


Node: TypeAlias = Simple | ArithmeticCommand | Chain | Negated | If | Case | For | While | Function | Group
Body: TypeAlias = Sequence[Node]

SEPARATORS = (";", "&", "\n")


def parse_script(text: str, name: str) -> Body:
    """The commands of a script in order. Raises ConfigError, which mentions `name`."""
    parser = _Parser(tokenize(text, name), name)
    body = parser.body(())
    parser.expect_end()
    return body


class _Parser:
    """A recursive-descent parser; `body` reads up to one of some closing words."""

    def __init__(self, tokens: Sequence[Token], name: str) -> None:
        self._tokens = tokens
        self._name = name
        self._position = 0

    def body(self, closing: Sequence[str]) -> Body:
        nodes: list[Node] = []
        while True:
            self._skip_separators()
            token = self._peek()
            if token is None or token.text in closing or token.text in (")", ";;"):
                return nodes
            nodes.append(self._chain())

    def expect_end(self) -> None:
        token = self._peek()
        if token is not None:
            raise self._wrong(token, f"`{token.text}` closes nothing")

    def _chain(self) -> Node:
        first = self._redirected()
        rest: list[tuple[Literal["&&", "||", "|"], Node]] = []
        while (token := self._peek()) is not None and token.is_operator and token.text in ("&&", "||", "|", "|&"):
            self._position += 1
            self._skip_newlines()
            rest.append(("|" if token.text == "|&" else token.text, self._redirected()))  # type: ignore[arg-type]
        return Chain(first=first, rest=rest) if rest else first

    def _redirected(self) -> Node:
        """A command with its standard input."""
        node = self._command()
        while (token := self._peek()) is not None and token.is_input:
            self._position += 1
            node = Group(body=[node], subshell=False, input=token.text)
        return node

    def _command(self) -> Node:
        token = self._next("a command")
        if token.is_operator:
            return self._of_operator(token)
        match token.text:
            case "!":
                return Negated(node=self._command())
            case "if":
                return self._if(token)
            case "case":
                return self._case(token)
            case "for":
                return self._for(token)
            case "while" | "until":
                condition = self.body(("do",))
                return While(condition=condition, body=self._do(), until=token.text == "until", line=token.line)
            case "function":
                name = self._next("a name").text
                self._skip("(", ")")
                return self._function(name)
            case "{":
                return Group(body=self._until("}"), subshell=False)
            case "[[":
                return self._double_brackets(token)
        return self._simple(token)

    def _of_operator(self, token: Token) -> Node:
        if token.text == "(":
            return Group(body=self._until(")"), subshell=True)
        if token.text.startswith("(("):
            return ArithmeticCommand(text=token.text[2:-2], line=token.line)
        raise self._wrong(token, f"`{token.text}` is in the place of a command")

    def _simple(self, token: Token) -> Node:
        start = self._position
        words = [token.text, *self._words()]
        given = [token.text for token in self._tokens[start : self._position] if token.is_input]
        if len(words) == 1 and self._peek_text() == "(" and re.fullmatch(r"[\w.-]+", words[0]):
            self._skip("(", ")")
            return self._function(words[0])
        return Simple(words=words, line=token.line, input=given[-1] if given else None)

    def _function(self, name: str) -> Node:
        self._skip_newlines()
        return Function(name=name, body=[self._command()])

    def _double_brackets(self, token: Token) -> Node:
        words = ["[["]
        while words[-1] != "]]":
            words.append(self._next("`]]`").text)
            if words[-1] == "=~":
                words.append(self._expression())
        return Simple(words=[word for word in words if word != "\n"], line=token.line)

    def _expression(self) -> str:
        """The regular expression after `=~`, which may hold brackets and bars."""
        parts: list[str] = []
        depth = 0
        while (text := self._peek_text()) not in (None, "&&", "||", "]]") and (text != ")" or depth):
            parts.append(self._next("an expression").text)
            depth += (text == "(") - (text == ")")
        return "".join(parts)

    def _if(self, token: Token) -> Node:
        branches = [(self.body(("then",)), self._then())]
        while self._peek_text() == "elif":
            self._position += 1
            branches.append((self.body(("then",)), self._then()))
        if self._peek_text() == "else":
            self._position += 1
            branches.append(((), self.body(("fi",))))
        self._take("fi")
        return If(branches=branches, line=token.line)

    def _then(self) -> Body:
        self._take("then")
        return self.body(("elif", "else", "fi"))

    def _case(self, token: Token) -> Node:
        word = self._next("a word").text
        self._skip_newlines()
        self._take("in")
        arms: list[tuple[Sequence[str], Body]] = []
        while True:
            self._skip_separators()
            if self._peek_text() == "esac":
                break
            self._skip("(")
            arms.append((self._patterns(), self.body(("esac",))))
            self._skip(";;")
        self._take("esac")
        return Case(word=word, arms=arms, line=token.line)

    def _patterns(self) -> Sequence[str]:
        patterns = [self._next("a pattern").text]
        while (token := self._next("`)`")).text == "|":
            patterns.append(self._next("a pattern").text)
        if token.text != ")":
            raise self._wrong(token, f"`{token.text}` is in the place of `)`")
        return patterns

    def _for(self, token: Token) -> Node:
        name = self._next("a name")
        if name.is_operator:
            return self._counting(name)
        words: list[str] | None = None
        self._skip_newlines()
        if self._peek_text() == "in":
            self._position += 1
            words = self._words()
        self._skip_separators()
        return For(name=name.text, words=words, body=self._do(), line=token.line)

    def _counting(self, token: Token) -> Node:
        """`for ((start; condition; step))` as a loop with `while`."""
        parts = token.text[2:-2].split(";")
        if len(parts) != 3:
            raise self._wrong(token, "`for ((…))` needs three parts")
        start, condition, step = (ArithmeticCommand(text=part.strip() or "1", line=token.line) for part in parts)
        self._skip_separators()
        body = [*self._do(), step]
        loop = While(condition=[condition], body=body, until=False, line=token.line)
        return Group(body=[start, loop], subshell=False)

    def _words(self) -> list[str]:
        words = []
        while (token := self._peek()) is not None and not token.is_operator:
            if not token.is_input:
                words.append(token.text)
            self._position += 1
        return words

    def _do(self) -> Body:
        self._take("do")
        return self._until("done")

    def _until(self, closing: str) -> Body:
        body = self.body((closing,))
        self._take(closing)
        return body

    def _peek(self) -> Token | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def _peek_text(self) -> str | None:
        token = self._peek()
        return token.text if token else None

    def _next(self, wanted: str) -> Token:
        token = self._peek()
        if token is None:
            raise ConfigError(f"`{self._name}` ends before {wanted}", hint="is the script whole?")
        self._position += 1
        return token

    def _take(self, text: str) -> None:
        token = self._next(f"`{text}`")
        if token.text != text:
            raise self._wrong(token, f"`{token.text.strip()}` is in the place of `{text}`")

    def _skip(self, *texts: str) -> None:
        for text in texts:
            if self._peek_text() == text:
                self._position += 1

    def _skip_newlines(self) -> None:
        while self._peek_text() == "\n":
            self._position += 1

    def _skip_separators(self) -> None:
        while (token := self._peek()) is not None and token.is_operator and token.text in SEPARATORS:
            self._position += 1

    def _wrong(self, token: Token, fact: str) -> ConfigError:
        return ConfigError(f"`{self._name}` line {token.line}: {fact}", hint="only what `bash -n` accepts is read")
