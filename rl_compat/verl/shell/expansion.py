"""Expansion of words of a shell script: quotes, variables, `$(…)`, `$((…))`, arrays; and assignments."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from rl_compat.verl.shell.arithmetic import evaluate
from rl_compat.verl.shell.scope import Scope, mark_of, unknown, unset, without_unset
from rl_compat.verl.shell.words import closing, tokenize

PARAMETER = re.compile(
    r"(?P<length>#)?(?P<indirect>!)?(?P<name>\w+|[@*#?$-])(?:\[(?P<item>[^\]]*)\])?(?P<rest>.*)", re.S
)
NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
BLANKS = re.compile("[ \t\n]+(?=(?:[^\0]*\0[^\0]*\0)*[^\0]*$)")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=(.*)", re.S)
DECLARATIONS = ("export", "declare", "typeset", "local", "readonly")
ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


def expand_word(raw: str, scope: Scope) -> list[str]:
    """The texts of one word: several for `"${list[@]}"`, none for an empty `$variable`."""
    fields = _Fields()
    _expand(raw, scope, fields, quoted=False)
    return fields.done()


def expand_text(raw: str, scope: Scope) -> str:
    """A word as one text, as in an assignment or a test."""
    fields = _Fields(splits=False)
    _expand(raw, scope, fields, quoted=False)
    return " ".join(fields.done())


def array_items(raw: str, scope: Scope) -> list[str]:
    """The items of `(a b "$c")`."""
    words = [token.text for token in tokenize(raw[1:-1], "array") if not token.is_operator]
    return [text for word in words for text in expand_word(word, scope)]


class _Fields:
    """Texts under construction: quoted parts stay whole, the rest is split at blanks."""

    def __init__(self, *, splits: bool = True) -> None:
        self._splits = splits
        self._fields: list[str] = []
        self._current: str | None = None
        self._is_quoted = False

    def quote(self) -> None:
        """Keep the current text even if it consists only of unset variables."""
        self._is_quoted = True
        self.add("")

    def add(self, text: str) -> None:
        self._current = (self._current or "") + text

    def split(self, text: str) -> None:
        if not self._splits:
            self.add(text)
            return
        first, *others = BLANKS.split(text)
        if first:
            self.add(first)
        for part in others:
            self._end()
            if part:
                self.add(part)

    def items(self, texts: Sequence[str]) -> None:
        for position, text in enumerate(texts):
            if position:
                self._end()
            self.add(text)

    def done(self) -> list[str]:
        self._end()
        return self._fields

    def _end(self) -> None:
        """Finish a text; one that consists only of unset variables without quotes is dropped."""
        current, self._current = self._current, None
        keeps, self._is_quoted = self._is_quoted or not self._splits, False
        if current is not None and (keeps or not current or without_unset(current)):
            self._fields.append(current)


def _expand(raw: str, scope: Scope, fields: _Fields, *, quoted: bool) -> None:
    """Add the expansion of `raw`; `quoted` means inside double quotes."""
    position = 0
    while position < len(raw):
        character = raw[position]
        if character == "\\":
            kept = quoted and raw[position + 1 : position + 2] not in ('"', "\\", "$", "`", "\n")
            fields.add(raw[position : position + 2] if kept else raw[position + 1 : position + 2].replace("\n", ""))
            position += 2
        elif character == "'" and not quoted:
            end = closing(raw, position)
            fields.add(raw[position + 1 : end - 1])
            position = end
        elif character == '"' and not quoted:
            end = closing(raw, position)
            _quoted(raw[position + 1 : end - 1], scope, fields)
            position = end
        elif character == "`":
            end = closing(raw, position)
            _put(fields, scope.substitute(raw[position + 1 : end - 1]), quoted=quoted)
            position = end
        elif character == "$":
            position = _dollar(raw, position, scope, fields, quoted=quoted)
        else:
            fields.add(character)
            position += 1


def _quoted(inner: str, scope: Scope, fields: _Fields) -> None:
    if inner not in ("$@", "${@}") and not re.fullmatch(r"\$\{\w+\[@\]\}", inner):
        fields.quote()
    _expand(inner, scope, fields, quoted=True)


def _dollar(raw: str, position: int, scope: Scope, fields: _Fields, *, quoted: bool) -> int:
    """Add the expansion at a `$`; returns the position after it."""
    following = raw[position + 1 : position + 2]
    if following == "(":
        end = closing(raw, position + 1)
        inner = raw[position + 2 : end - 1]
        is_arithmetic = inner.startswith("(") and inner.endswith(")")
        _put(fields, arithmetic(inner[1:-1], scope) if is_arithmetic else scope.substitute(inner), quoted=quoted)
        return end
    if following == "{":
        end = closing(raw, position + 1)
        _parameter(raw[position + 2 : end - 1], scope, fields, quoted=quoted)
        return end
    if following == "'" and not quoted:
        end = closing(raw, position + 1)
        fields.add(re.sub(r"\\(.)", lambda match: ESCAPES.get(match[1], match[0]), raw[position + 2 : end - 1]))
        return end
    name = NAME.match(raw, position + 1)
    if name is None:
        fields.add("$")
        return position + 1
    _parameter(name[0], scope, fields, quoted=quoted)
    return name.end()


def arithmetic(text: str, scope: Scope) -> str:
    """The value of an arithmetic expression as text, or a mark."""
    filled = expand_text(re.sub(r"[\"']", "", text), scope)
    marks = [mark_of(filled), *(mark_of(scope.get(name) or "") for name in re.findall(r"[A-Za-z_]\w*", filled))]
    mark = next((mark for mark in marks if mark), None)
    if mark:
        return mark[0]
    try:
        return str(evaluate(filled, lambda name: scope.get(name) or ""))
    except ValueError as error:
        return unknown(str(error))


def _put(fields: _Fields, text: str, *, quoted: bool) -> None:
    if quoted:
        fields.add(text)
    else:
        fields.split(text)


def _parameter(body: str, scope: Scope, fields: _Fields, *, quoted: bool) -> None:
    """Add the expansion of `${body}`."""
    match = PARAMETER.fullmatch(body)
    if match is None:
        _put(fields, unknown(f"`${{{body}}}` is not supported"), quoted=quoted)
        return
    name, item, rest = match["name"], match["item"], match["rest"]
    if match["indirect"] and not rest:
        name = scope.get(name) or name
    texts = scope.items(name) if name in ("@", "*") or item in ("@", "*") else None
    if match["length"]:
        _put(fields, str(len(texts if texts is not None else scope.get(name) or "")), quoted=quoted)
    elif texts is not None or name in ("@", "*") or item in ("@", "*"):
        _list(name, item, rest, texts or [], scope, fields, quoted=quoted)
    else:
        text, whole = _changed(name, _item(name, item, scope), rest, scope, quoted=quoted)
        _put(fields, text, quoted=quoted or whole)


def _list(
    name: str, item: str | None, rest: str, texts: list[str], scope: Scope, fields: _Fields, *, quoted: bool
) -> None:
    slice_of = re.fullmatch(r":(?!-)\s*(-?\w+)(?::(\w+))?", rest)
    if slice_of:
        start = int(arithmetic(slice_of[1], scope))
        start = max(start - 1, 0) if name in ("@", "*") else start
        texts = texts[start:] if slice_of[2] is None else texts[start : start + int(arithmetic(slice_of[2], scope))]
    elif not texts and rest.startswith((":-", "-")):
        _put(fields, expand_text(rest.lstrip(":")[1:], scope), quoted=quoted)
        return
    if not quoted:
        fields.split(" ".join(texts))
    elif name == "*" or item == "*":
        fields.add(" ".join(texts))
    else:
        fields.items(texts)


def _item(name: str, item: str | None, scope: Scope) -> str | None:
    if name == "#":
        return str(len(scope.items("@") or []))
    if name in "?$-":
        return "0" if name == "?" else unknown(f"`${name}` is known only while a script runs")
    if item is None:
        return scope.get(name)
    texts = scope.items(name) or []
    number = arithmetic(item, scope)
    return texts[int(number)] if re.fullmatch(r"-?\d+", number) and -len(texts) <= int(number) < len(texts) else None


def _changed(name: str, value: str | None, rest: str, scope: Scope, *, quoted: bool) -> tuple[str, bool]:
    """The value of a variable after the operator in `rest`, and whether it stays one word."""
    operation = re.match(r":?[-=+?]", rest)
    if operation:
        return _alternative(name, value, operation[0], rest[operation.end() :], scope, quoted=quoted)
    if value is None:
        return unset(name), False
    if mark_of(value) or not rest:
        return value, False
    return _cut(value, rest, scope), False


def _alternative(
    name: str, value: str | None, operation: str, word: str, scope: Scope, *, quoted: bool
) -> tuple[str, bool]:
    given = value is not None and (operation[0] != ":" or without_unset(value) != "")
    if given != (operation[-1] == "+"):
        return (value or "") if operation[-1] != "+" else "", False
    if operation[-1] == "?":
        return unset(name), False
    inner = _Fields(splits=False)
    _expand(word, scope, inner, quoted=quoted and '"' not in word)
    text = " ".join(inner.done())
    if operation[-1] == "=":
        scope.variables[name] = text
    return text, word[:1] in ('"', "'")


def _cut(value: str, rest: str, scope: Scope) -> str:
    """A text after an operator for case, prefix, suffix, replacement or substring."""
    if rest in (",,", "^^"):
        return value.lower() if rest == ",," else value.upper()
    if rest[0] in "%#":
        greedy = rest[:2] in ("%%", "##")
        return _trimmed(value, expand_text(rest[2 if greedy else 1 :], scope), rest[0], greedy=greedy)
    if rest[0] == "/":
        pattern, _, new = rest.lstrip("/").partition("/")
        expression = fnmatch.translate(expand_text(pattern, scope)).removesuffix(r"\Z").removesuffix(r"\z")
        filled = expand_text(new, scope)
        return re.sub(expression, lambda match: filled, value, count=0 if rest.startswith("//") else 1)
    part = re.fullmatch(r":(?!-)\s*(-?\d+)(?::(-?\d+))?", rest)
    if part is None:
        return unknown(f"`{rest}` after a variable is not supported")
    start = int(part[1])
    return value[start:] if part[2] is None else value[start:][: int(part[2])]


def _trimmed(value: str, pattern: str, side: str, *, greedy: bool) -> str:
    ends = range(len(value) + 1)
    cuts = [end for end in ends if fnmatch.fnmatchcase(value[:end] if side == "#" else value[end:], pattern)]
    if not cuts:
        return value
    longest = max(cuts) if side == "#" else min(cuts)
    shortest = min(cuts) if side == "#" else max(cuts)
    cut = longest if greedy else shortest
    return value[cut:] if side == "#" else value[:cut]


def run_arithmetic(text: str, scope: Scope) -> bool | None:
    """Execute `((text))` and return its status; None if only a run can determine it."""
    for name, sign in re.findall(r"([A-Za-z_]\w*)(\+\+|--)", text):
        scope.variables[name] = arithmetic(f"{name}{sign[0]}1", scope)
    if assigned := re.fullmatch(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)\s*(.*)", text, re.S):
        name, operation, rest = assigned.groups()
        scope.variables[name] = arithmetic(f"{name}{operation}({rest})" if operation else rest, scope)
        return True
    value = arithmetic(re.sub(r"\+\+|--", "", text), scope)
    return None if mark_of(value) else value != "0"


def assign(scope: Scope, word: str) -> None:
    """Execute one assignment."""
    match = ASSIGNMENT.fullmatch(word)
    assert match is not None
    name, item, adds, raw = match[1], match[2], match[3], match[4]
    if raw.startswith("("):
        items = array_items(raw, scope)
        scope.variables[name] = [*(scope.items(name) or []), *items] if adds else items
        return
    value = expand_text(raw, scope)
    if item is not None:
        items, number = list(scope.items(name) or []), arithmetic(item, scope)
        position = min(int(number), len(items)) if number.isdigit() else len(items)
        items[position : position + 1] = [value]
        scope.variables[name] = items
    else:
        scope.variables[name] = (scope.get(name) or "") + value if adds else value


def declare(scope: Scope, words: Sequence[str]) -> dict[str, str]:
    """Execute `export`, `local` and similar commands; returns the exported variables and values."""
    exported = {}
    for word in words[1:]:
        if ASSIGNMENT.fullmatch(word):
            assign(scope, word)
        name = re.split(r"\+?=", word)[0]
        if words[0] == "export" and re.fullmatch(r"\w+", name):
            exported[name] = scope.get(name) or ""
    return exported


def own_environment(scope: Scope, words: Sequence[str]) -> dict[str, str]:
    """The variables that are assigned in front of a command and apply only to it."""
    pairs = [match for word in words if (match := ASSIGNMENT.fullmatch(word))]
    return {match[1]: expand_text(match[4], scope) for match in pairs}
