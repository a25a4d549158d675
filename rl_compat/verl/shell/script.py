"""A shell script read without running it: the programs that it would start, with arguments and environment.

Conditions are decided, loops and functions are followed, and programs are recorded.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from itertools import takewhile
from pathlib import Path

from rl_compat.errors import ConfigError
from rl_compat.verl.shell import syntax
from rl_compat.verl.shell.builtins import BUILTINS, OUTPUT, Stop, decide, matched, status_of
from rl_compat.verl.shell.expansion import (
    ASSIGNMENT,
    DECLARATIONS,
    assign,
    declare,
    expand_text,
    expand_word,
    own_environment,
    run_arithmetic,
)
from rl_compat.verl.shell.scope import Output, Scope, Started, mark_of, unknown, without_unset
from rl_compat.verl.shell.syntax import Body, Node, parse_script

SHELLS = ("bash", "sh", "zsh")
MOST_ROUNDS = 1000
MOST_DEPTH = 20
MOST_COMMANDS = 100_000


@dataclass(slots=True, kw_only=True)
class ReadScript:
    """A script that is followed: what it started, and the state of its shell."""

    name: str
    folder: Path
    "where other scripts are searched"
    environment: InitVar[Mapping[str, str]]
    arguments: InitVar[Sequence[str]]
    doubtful: bool = False
    "what a condition counts as that only a run can decide"
    scope: Scope = field(init=False)
    started: list[Started] = field(default_factory=list)
    exported: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    num_commands: int = 0
    line: int = 1
    cwd: Path = field(default_factory=Path.cwd)
    functions: dict[str, Body] = field(default_factory=dict)
    output: Output | None = None
    input: list[str] | None = None
    "the lines of the standard input that are left to read; None if only a run can determine them"
    depth: int = 0

    def __post_init__(self, environment: Mapping[str, str], arguments: Sequence[str]) -> None:
        self.scope = Scope(
            environment=environment, substitute=self._substitute, script=self.name, arguments=list(arguments)
        )
        self.scope.variables["BASH_SOURCE"] = [str(self.folder / self.name)]
        self.change_folder(self.cwd)
        self.scope.variables["OPTIND"] = "1"
        self.scope.variables["RANDOM"] = unknown("`$RANDOM` is different each time")

    def run(self, text: str) -> None:
        """Follow a script to its end. Raises ConfigError."""
        try:
            self.body(parse_script(text, self.name))
        except Stop as stop:
            if stop.is_failure and not self.started:
                self.note(self.line, "the script stops here")
        except (ValueError, RecursionError) as error:
            fact = f"`{self.name}` cannot be read at line {self.line}: {error}"
            raise ConfigError(fact, hint="only what `bash -n` accepts is read") from error

    def body(self, body: Body) -> bool | None:
        status: bool | None = True
        for node in body:
            status = self._node(node)
            self.scope.status = "1" if status is False else "0"
        return status

    def change_folder(self, folder: Path) -> None:
        self.cwd = folder
        self.scope.variables["PWD"] = str(folder)

    def _node(self, node: Node) -> bool | None:
        self.num_commands += 1
        if self.num_commands > MOST_COMMANDS:
            fact = f"`{self.name}` runs more than {MOST_COMMANDS} commands"
            raise ConfigError(fact, hint="does it have an infinite loop?")
        match node:
            case syntax.Simple():
                return self._simple(node)
            case syntax.Chain():
                return self._chain(node)
            case syntax.If():
                return self._if(node)
            case syntax.Case():
                return self._case(node)
            case syntax.For():
                return self._for(node)
            case syntax.While():
                return self._while(node)
            case syntax.Group():
                return self._group(node)
            case syntax.Negated():
                status = self._node(node.node)
                return None if status is None else not status
            case syntax.ArithmeticCommand():
                return run_arithmetic(node.text, self.scope)
            case syntax.Function():
                self.functions[node.name] = node.body
        return True

    def _chain(self, node: syntax.Chain) -> bool | None:
        status = self._node(node.first)
        if status is None and [joint for joint, _ in node.rest if joint != "|"] == ["&&", "||"]:
            self.note(self.line, "what `&&` follows can only be decided by running the script; it counts as true")
        for joint, following in node.rest:
            if joint == "|":
                self._spoil()
                status = self._with_input(None, following)
            elif status is None and self.output is not None:
                self._spoil()
            elif (joint == "&&" and status is not False) or (joint == "||" and status is False):
                line = self.line
                try:
                    status = self._node(following)
                except Stop as stop:
                    self._assume_passed(stop, line)
                    status = joint == "||"
            elif status is None and self.doubtful:
                self.note(self.line, "what `||` follows can only be decided by running the script; it counts as true")
        return status

    def _if(self, node: syntax.If) -> bool | None:
        for condition, body in node.branches:
            if condition and not self._holds(condition, node.line, "`if`"):
                continue
            try:
                return self.body(body)
            except Stop as stop:
                self._assume_passed(stop, node.line)
                if not condition:
                    return self.body(node.branches[0][1])
        return True

    def _assume_passed(self, stop: Stop, line: int) -> None:
        """Take a check that ends the script as passed, since it may pass on another machine; other stops go on."""
        if not stop.is_failure or self.output is not None:
            raise stop
        self.note(line, "the check that would stop the script is taken as passed")

    def _holds(self, condition: Body, line: int, what: str) -> bool:
        """Whether a condition holds; an undecidable one is noted."""
        status = self.body(condition)
        if status is None:
            taken = str(self.doubtful).lower()
            self.note(line, f"the condition of {what} can only be decided by running the script; it counts as {taken}")
        return self.doubtful if status is None else status

    def _case(self, node: syntax.Case) -> bool | None:
        word = without_unset(expand_text(node.word, self.scope))
        if mark := mark_of(word):
            self.note(node.line, f"`case {node.word}` counts as matching nothing: {mark[2]}")
            return True
        for patterns, body in node.arms:
            if any(fnmatch.fnmatchcase(word, expand_text(pattern, self.scope)) for pattern in patterns):
                try:
                    return self.body(body)
                except Stop as stop:
                    self._assume_passed(stop, node.line)
        return True

    def _for(self, node: syntax.For) -> bool | None:
        words = ['"$@"'] if node.words is None else node.words
        values = [value for word in words for value in expand_word(word, self.scope)]
        for value in values[:MOST_ROUNDS]:
            self.scope.variables[node.name] = value
            if not self._round(node.body):
                break
        return True

    def _while(self, node: syntax.While) -> bool | None:
        for _ in range(MOST_ROUNDS):
            status = self.body(node.condition)
            if status is None:
                why = "the condition of the loop can only be decided by running the script; the loop is skipped"
                self.note(node.line, why)
            if status is None or status == node.until or not self._round(node.body):
                break
        return True

    def _round(self, body: Body) -> bool:
        """Follow one iteration of a loop; False if it breaks."""
        try:
            self.body(body)
        except Stop as stop:
            if stop.kind == "break":
                return False
            if stop.kind != "continue":
                raise
        return True

    def _with_input(self, lines: list[str] | None, node: Node) -> bool | None:
        before, self.input = self.input, lines
        try:
            return self._node(node)
        finally:
            self.input = before

    def _lines(self, word: str) -> list[str] | None:
        """The lines of a here-document; None if only a run can determine them."""
        text = without_unset(expand_text(word, self.scope))
        return None if mark_of(text) else text.split("\n")

    def _group(self, node: syntax.Group) -> bool | None:
        if node.input is not None:
            return self._with_input(self._lines(node.input), node.body[0])
        if not node.subshell:
            return self.body(node.body)
        variables, cwd = self.scope.variables, self.cwd
        self.scope.variables = dict(variables)
        try:
            return self.body(node.body)
        except Stop as stop:
            if stop.kind != "exit":
                raise
            return None
        finally:
            self.scope.variables, self.cwd = variables, cwd

    def _simple(self, node: syntax.Simple) -> bool | None:
        self.line = node.line
        if node.input is not None:
            return self._with_input(self._lines(node.input), replace(node, input=None))
        if node.words[0] == "[[":
            words = [expand_text(word, self.scope) for word in node.words[1:-1]]
            if len(words) == 3 and words[1] == "=~" and (found := matched(words[0], words[2])):
                self.scope.variables["BASH_REMATCH"] = [found[0], *(group or "" for group in found.groups())]
            return decide(words, patterns=True, doubtful=self.doubtful)
        assigned = list(takewhile(ASSIGNMENT.fullmatch, node.words))
        raw = node.words[len(assigned) :]
        if not raw:
            for word in assigned:
                assign(self.scope, word)
            return True
        if raw[0] in DECLARATIONS:
            self.exported |= declare(self.scope, raw)
            return True
        words = [text for word in raw for text in expand_word(word, self.scope)]
        own = own_environment(self.scope, assigned)
        if not words or words[0] not in BUILTINS:
            return self.command(words, node.line, own) if words else True
        before = {name: self.scope.variables.get(name) for name in own}
        self.scope.variables.update(own)
        try:
            return self.command(words, node.line, own)
        finally:
            self.scope.show(before)

    def command(self, words: list[str], line: int, own: Mapping[str, str]) -> bool | None:
        name, *rest = words
        builtin = BUILTINS.get(name)
        if builtin is not None:
            return builtin(self, rest, line)
        if name in self.functions:
            return self._call(name, rest)
        if name == "cat" and not rest and self.input is not None:
            self.print("\n".join(self.input))
            return True
        if name in OUTPUT:
            self.print(OUTPUT[name](rest) if rest or name == "date" else "")
            return True
        status = status_of(words, doubtful=self.doubtful)
        if status is not None:
            return status
        shell = next(
            (place for place, word in enumerate(words, 1) if Path(word).name in SHELLS and "=" not in word), None
        )
        if shell is not None and self._follow(words[shell:]):
            return None
        self._spoil()
        if name == "xargs":
            words.append(unknown("`xargs` adds what it reads when the script runs"))
        words = [word for word in words if not mark_of(word) or without_unset(word)]
        self.started.append(Started(words=words, line=line, script=self.name, environment=dict(own)))
        return None

    def _call(self, name: str, arguments: list[str]) -> bool | None:
        if self.depth >= MOST_DEPTH:
            raise ConfigError(f"`{self.name}` calls `{name}` recursively")
        before, self.scope.arguments = self.scope.arguments, arguments
        hidden, self.scope.hidden = self.scope.hidden, {}
        self.depth += 1
        try:
            return self.body(self.functions[name])
        except Stop as stop:
            if stop.kind != "return":
                raise
            return stop.status
        finally:
            self.scope.show(self.scope.hidden)
            self.scope.arguments, self.scope.hidden = before, hidden
            self.depth -= 1

    def _follow(self, rest: list[str]) -> bool:
        """Read the script that `bash FILE` or `bash -c TEXT` runs, in a new scope; False if there is none."""
        flags = [word for word in rest if re.fullmatch(r"-\w+", word)]
        others = rest[len(flags) :]
        if self.depth >= MOST_DEPTH or not others:
            return False
        if any(flag.endswith("c") for flag in flags):
            text, name, arguments = others[0], self.name, others[2:]
        else:
            path = self.find(others[0])
            if path is None:
                return False
            text, name, arguments = path.read_text(encoding="utf-8", errors="replace"), path.name, others[1:]
        inner = ReadScript(
            name=name,
            folder=self.folder,
            environment={**self.scope.environment, **self.exported},
            arguments=arguments,
            doubtful=self.doubtful,
        )
        inner.depth = self.depth + 1
        inner.run(text)
        self.started += inner.started
        self.notes += inner.notes
        return True

    def source(self, path: Path) -> None:
        """Read another script in this scope."""
        if self.depth >= MOST_DEPTH:
            raise ConfigError(f"`{path}` includes itself")
        self.depth += 1
        try:
            self.body(parse_script(path.read_text(encoding="utf-8", errors="replace"), path.name))
        except Stop as stop:
            if stop.kind != "return":
                raise
        finally:
            self.depth -= 1

    def find(self, text: str) -> Path | None:
        candidates = () if mark_of(text) else (Path(text), self.folder / text, self.cwd / text)
        return next((candidate for candidate in candidates if candidate.is_file()), None)

    def _substitute(self, text: str) -> str:
        """The output of a script in `$(…)`, or a mark."""
        before, self.output = self.output, Output()
        started, variables, cwd = len(self.started), self.scope.variables, self.cwd
        self.scope.variables = dict(variables)
        try:
            self.body(parse_script(text, self.name))
        except Stop:
            pass
        finally:
            output, self.output = self.output, before
            self.scope.variables, self.cwd = variables, cwd
            del self.started[started:]
        if not output.is_known:
            return unknown(f"`$({' '.join(text.split())[:60]})` is not executed")
        return "\n".join(output.texts).rstrip("\n")

    def print(self, text: str) -> None:
        if self.output is not None:
            self.output.texts.append(text)

    def _spoil(self) -> None:
        """The output depends on a command that is not executed."""
        if self.output is not None:
            self.output.is_known = False

    def note(self, line: int, text: str) -> None:
        note = f"`{self.name}` line {line}: {text}"
        if note not in self.notes:
            self.notes.append(note)
