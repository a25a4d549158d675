"""A shell script read without running it: which programs it would start, with which arguments and environment."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rl_compat.config.shell_commands import OUTPUT, status_of
from rl_compat.config.shell_expansion import arithmetic, array_items, expand_text, expand_word
from rl_compat.config.shell_scope import Scope, mark_of, unknown, without_unset
from rl_compat.config.shell_syntax import (
    Arithmetic,
    Body,
    Case,
    Chain,
    For,
    Function,
    Group,
    If,
    Negated,
    Node,
    Simple,
    While,
    parse_script,
)
from rl_compat.config.shell_tests import decide
from rl_compat.errors import ConfigError

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=(.*)", re.S)
DECLARATIONS = ("export", "declare", "typeset", "local", "readonly")
SHELLS = ("bash", "sh", "zsh")
MOST_ROUNDS = 1000
MOST_DEPTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A program that a script would start."""

    words: Sequence[str]
    "arguments that nothing but running would give hold a mark"
    line: int
    script: str
    environment: Mapping[str, str]
    "variables set for this program alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadScript:
    """What reading a script gave."""

    started: Sequence[Started]
    exported: Mapping[str, str]
    notes: Sequence[str]
    reads_arguments: bool


def read_script(
    text: str,
    *,
    name: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    doubtful: bool = False,
) -> ReadScript:
    """Follow a script with these arguments and environment. `folder` is where other scripts are looked for.

    A condition that only running would decide counts as `doubtful`. Raises ConfigError for what is not a shell script.
    """
    reader = _Reader(name=name, folder=folder, environment=environment, arguments=arguments, doubtful=doubtful)
    reader.run(text)
    return ReadScript(
        started=reader.started,
        exported=reader.exported,
        notes=list(dict.fromkeys(reader.notes)),
        reads_arguments=reader.scope.reads_arguments,
    )


class _Stop(Exception):  # noqa: N818
    """The script, a function or a loop ends here."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass(slots=True)
class _Output:
    """What a script in `$(…)` printed, and why that cannot be known."""

    texts: list[str] = field(default_factory=list)
    unknown: str | None = None


class _Reader:
    def __init__(
        self,
        *,
        name: str,
        folder: Path,
        environment: Mapping[str, str],
        arguments: Sequence[str],
        doubtful: bool,
    ) -> None:
        self.scope = Scope(environment=environment, substitute=self._substitute, script=name, arguments=list(arguments))
        self.scope.variables["BASH_SOURCE"] = [str(folder / name)]
        self.scope.variables["RANDOM"] = unknown("`$RANDOM` is another number each time")
        self.started: list[Started] = []
        self.exported: dict[str, str] = {}
        self.notes: list[str] = []
        self._name = name
        self._doubtful = doubtful
        self._folder = folder
        self._cwd = Path.cwd()
        self._functions: dict[str, Body] = {}
        self._output: _Output | None = None
        self._depth = 0

    def run(self, text: str) -> None:
        try:
            self._body(parse_script(text, self._name))
        except _Stop:
            return

    def _body(self, body: Body) -> bool | None:
        status: bool | None = True
        for node in body:
            status = self._node(node)
        return status

    def _node(self, node: Node) -> bool | None:
        match node:
            case Simple():
                return self._simple(node)
            case Chain():
                return self._chain(node)
            case If():
                return self._if(node)
            case Case():
                return self._case(node)
            case For():
                return self._for(node)
            case While():
                return self._while(node)
            case Group():
                return self._group(node)
            case Negated():
                status = self._node(node.node)
                return None if status is None else not status
            case Arithmetic():
                return self._arithmetic(node)
            case Function():
                self._functions[node.name] = node.body
        return True

    def _chain(self, node: Chain) -> bool | None:
        status = self._node(node.first)
        for joint, following in node.rest:
            if joint == "|":
                self._spoil("a pipe")
                status = self._node(following)
            elif status is None and self._output is not None:
                self._spoil("a command that is not run")
            elif (joint == "&&" and status is not False) or (joint == "||" and status is False):
                status = self._node(following)
        return status

    def _if(self, node: If) -> bool | None:
        for condition, body in node.branches:
            if not condition or self._holds(condition, node.line, "`if`"):
                return self._body(body)
        return True

    def _holds(self, condition: Body, line: int, what: str) -> bool:
        """Whether a condition holds; what cannot be known is noted."""
        status = self._body(condition)
        if status is None:
            taken = str(self._doubtful).lower()
            self._note(line, f"the condition of {what} needs the script to run; it is taken as {taken}")
        return self._doubtful if status is None else status

    def _case(self, node: Case) -> bool | None:
        word = without_unset(expand_text(node.word, self.scope))
        if mark := mark_of(word):
            self._note(node.line, f"`case {node.word}` is taken to fit nothing: {mark[2]}")
            return True
        for patterns, body in node.arms:
            if any(fnmatch.fnmatchcase(word, expand_text(pattern, self.scope)) for pattern in patterns):
                return self._body(body)
        return True

    def _for(self, node: For) -> bool | None:
        words = ['"$@"'] if node.words is None else node.words
        values = [value for word in words for value in expand_word(word, self.scope)]
        for value in values[:MOST_ROUNDS]:
            self.scope.variables[node.name] = value
            if not self._round(node.body):
                break
        return True

    def _while(self, node: While) -> bool | None:
        for _ in range(MOST_ROUNDS):
            status = self._body(node.condition)
            if status is None:
                self._note(node.line, "the loop's condition needs the script to run; the loop is left out")
            if status is None or status == node.until or not self._round(node.body):
                break
        return True

    def _round(self, body: Body) -> bool:
        """One round of a loop; False when it breaks."""
        try:
            self._body(body)
        except _Stop as stop:
            if stop.kind == "break":
                return False
            if stop.kind != "continue":
                raise
        return True

    def _group(self, node: Group) -> bool | None:
        if not node.subshell:
            return self._body(node.body)
        variables, cwd = self.scope.variables, self._cwd
        self.scope.variables = dict(variables)
        try:
            return self._body(node.body)
        except _Stop as stop:
            if stop.kind != "exit":
                raise
            return None
        finally:
            self.scope.variables, self._cwd = variables, cwd

    def _arithmetic(self, node: Arithmetic) -> bool | None:
        for name, sign in re.findall(r"([A-Za-z_]\w*)(\+\+|--)", node.text):
            self.scope.variables[name] = arithmetic(f"{name}{sign[0]}1", self.scope)
        if assigned := re.fullmatch(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)\s*(.*)", node.text, re.S):
            name, operation, rest = assigned.groups()
            value = arithmetic(f"{name}{operation}({rest})" if operation else rest, self.scope)
            self.scope.variables[name] = value
            return True
        value = arithmetic(re.sub(r"\+\+|--", "", node.text), self.scope)
        return None if mark_of(value) else value != "0"

    def _simple(self, node: Simple) -> bool | None:
        if node.words[0] == "[[":
            return decide([expand_text(word, self.scope) for word in node.words[1:-1]], patterns=True)
        raw = list(node.words)
        assigned: list[str] = []
        while raw and ASSIGNMENT.fullmatch(raw[0]):
            assigned.append(raw.pop(0))
        if not raw:
            for word in assigned:
                self._assign(word)
            return True
        if raw[0] in DECLARATIONS:
            self._declare(raw)
            return True
        words = [text for word in raw for text in expand_word(word, self.scope)]
        own = {
            match[1]: expand_text(match[4], self.scope) for word in assigned if (match := ASSIGNMENT.fullmatch(word))
        }
        return self._command(words, node.line, own) if words else True

    def _assign(self, word: str) -> None:
        match = ASSIGNMENT.fullmatch(word)
        assert match is not None
        name, item, adds, raw = match[1], match[2], match[3], match[4]
        if raw.startswith("("):
            items = array_items(raw, self.scope)
            self.scope.variables[name] = [*(self.scope.items(name) or []), *items] if adds else items
            return
        value = expand_text(raw, self.scope)
        if item is not None:
            items = list(self.scope.items(name) or [])
            number = arithmetic(item, self.scope)
            position = min(int(number), len(items)) if number.isdigit() else len(items)
            items[position : position + 1] = [value]
            self.scope.variables[name] = items
        else:
            self.scope.variables[name] = (self.scope.get(name) or "") + value if adds else value

    def _declare(self, raw: Sequence[str]) -> None:
        for word in raw[1:]:
            if ASSIGNMENT.fullmatch(word):
                self._assign(word)
            name = re.split(r"\+?=", word)[0]
            if raw[0] == "export" and re.fullmatch(r"\w+", name):
                self.exported[name] = self.scope.get(name) or ""

    def _command(self, words: list[str], line: int, own: Mapping[str, str]) -> bool | None:
        name, *rest = words
        builtin = BUILTINS.get(name)
        if builtin is not None:
            return builtin(self, rest, line)
        if name in self._functions:
            return self._call(name, rest)
        if name in OUTPUT:
            self._print(OUTPUT[name](rest) if rest or name == "date" else "")
            return True
        status = status_of(words)
        if status is not None:
            return status
        if Path(name).name in SHELLS and rest and self._follow(rest, line):
            return None
        self._spoil(f"`{' '.join(words)[:60]}`")
        self.started.append(Started(words=words, line=line, script=self._name, environment=dict(own)))
        return None

    def _call(self, name: str, arguments: list[str]) -> bool | None:
        if self._depth >= MOST_DEPTH:
            raise ConfigError(f"`{self._name}` calls `{name}` in a circle")
        before, self.scope.arguments = self.scope.arguments, arguments
        self._depth += 1
        try:
            return self._body(self._functions[name])
        except _Stop as stop:
            if stop.kind != "return":
                raise
            return True
        finally:
            self.scope.arguments = before
            self._depth -= 1

    def _follow(self, rest: list[str], line: int) -> bool:
        """Read the script that `bash FILE` or `bash -c TEXT` runs, in a scope of its own; False when there is none."""
        flags = [word for word in rest if re.fullmatch(r"-\w+", word)]
        others = rest[len(flags) :]
        if self._depth >= MOST_DEPTH or not others:
            return False
        if any(flag.endswith("c") for flag in flags):
            text, name, arguments = others[0], self._name, others[2:]
        else:
            path = self._find(others[0])
            if path is None:
                return False
            text, name, arguments = path.read_text(encoding="utf-8", errors="replace"), path.name, others[1:]
        inner = _Reader(
            name=name,
            folder=self._folder,
            environment={**self.scope.environment, **self.exported},
            arguments=arguments,
            doubtful=self._doubtful,
        )
        inner._depth = self._depth + 1
        inner.run(text)
        self.started += inner.started
        self.notes += inner.notes
        return True

    def _source(self, path: Path) -> None:
        """Read another script in this scope."""
        if self._depth >= MOST_DEPTH:
            raise ConfigError(f"`{path}` is read in a circle")
        self._depth += 1
        try:
            self._body(parse_script(path.read_text(encoding="utf-8", errors="replace"), path.name))
        except _Stop as stop:
            if stop.kind != "return":
                raise
        finally:
            self._depth -= 1

    def _find(self, text: str) -> Path | None:
        for candidate in (Path(text), self._folder / text, self._cwd / text):
            if not mark_of(text) and candidate.is_file():
                return candidate
        return None

    def _substitute(self, text: str) -> str:
        """The output of a script in `$(…)`, or a mark."""
        before, self._output = self._output, _Output()
        started, variables, cwd = len(self.started), self.scope.variables, self._cwd
        self.scope.variables = dict(variables)
        try:
            self._body(parse_script(text, self._name))
        except _Stop:
            pass
        finally:
            output, self._output = self._output, before
            self.scope.variables, self._cwd = variables, cwd
            del self.started[started:]
        if output.unknown is not None:
            return unknown(f"`$({' '.join(text.split())[:60]})` is not run")
        return "\n".join(output.texts).rstrip("\n")

    def _print(self, text: str) -> None:
        if self._output is not None:
            self._output.texts.append(text)

    def _spoil(self, why: str) -> None:
        if self._output is not None and self._output.unknown is None:
            self._output.unknown = why

    def _note(self, line: int, text: str) -> None:
        self.notes.append(f"`{self._name}` line {line}: {text}")


Builtin = Callable[[_Reader, list[str], int], "bool | None"]


def _test(reader: _Reader, words: list[str], line: int) -> bool | None:
    return decide(words[:-1] if words[-1:] == ["]"] else words, patterns=False)


def _change_folder(reader: _Reader, words: list[str], line: int) -> bool | None:
    target = next((word for word in words if word != "--"), str(Path.home()))
    reader._cwd = reader._cwd / target
    return True


def _print_folder(reader: _Reader, words: list[str], line: int) -> bool | None:
    reader._print(str(reader._cwd.resolve()))
    return True


def _stop(kind: str) -> Builtin:
    def builtin(reader: _Reader, words: list[str], line: int) -> bool | None:
        if kind == "exit" and not reader.started and words not in ([], ["0"]) and reader._output is None:
            reader._note(line, "the script stops here")
        raise _Stop(kind)

    return builtin


def _shift(reader: _Reader, words: list[str], line: int) -> bool | None:
    number = int(words[0]) if words and words[0].isdigit() else 1
    enough = number <= len(reader.scope.arguments)
    if enough:
        del reader.scope.arguments[:number]
    return enough


def _set(reader: _Reader, words: list[str], line: int) -> bool | None:
    if "--" in words:
        reader.scope.arguments = words[words.index("--") + 1 :]
    return True


def _unset(reader: _Reader, words: list[str], line: int) -> bool | None:
    for word in words:
        reader.scope.variables.pop(word, None)
        reader.scope.environment = {name: text for name, text in reader.scope.environment.items() if name != word}
    return True


def _source(reader: _Reader, words: list[str], line: int) -> bool | None:
    path = reader._find(words[0]) if words else None
    if path is None:
        reader._note(line, f"`{' '.join(words)}` is not there and is left out")
    else:
        reader._source(path)
    return True


def _evaluate(reader: _Reader, words: list[str], line: int) -> bool | None:
    body = parse_script(" ".join(words), reader._name)
    return reader._body([replace(node, line=line) if isinstance(node, Simple) else node for node in body])


def _execute(reader: _Reader, words: list[str], line: int) -> bool | None:
    if not words:
        return True
    reader._command(words, line, {})
    raise _Stop("exit")


def _read(reader: _Reader, words: list[str], line: int) -> bool | None:
    for word in words:
        if re.fullmatch(r"[A-Za-z_]\w*", word):
            reader.scope.variables[word] = unknown("`read` asks while the script runs")
    return None


def _nothing(reader: _Reader, words: list[str], line: int) -> bool | None:
    return True


BUILTINS: Mapping[str, Builtin] = {
    "[": _test,
    "test": _test,
    "cd": _change_folder,
    "pushd": _change_folder,
    "pwd": _print_folder,
    "exit": _stop("exit"),
    "return": _stop("return"),
    "break": _stop("break"),
    "continue": _stop("continue"),
    "shift": _shift,
    "set": _set,
    "unset": _unset,
    "source": _source,
    ".": _source,
    "eval": _evaluate,
    "exec": _execute,
    "read": _read,
    **dict.fromkeys(("trap", "wait", "ulimit", "shopt", "umask", "sleep", "mkdir", "popd", "let"), _nothing),
}
