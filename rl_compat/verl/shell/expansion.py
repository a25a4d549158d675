"""Expansion of words of a shell script: quotes, variables, `$(…)`, `$((…))`, arrays; and assignments."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from rl_compat.verl.shell.arithmetic import evaluate
from rl_compat.verl.shell.scope import BLANKS, Scope, mark_of, unknown, unset, without_unset
from rl_compat.verl.shell.words import closing, tokenize

PARAMETER = re.compile(
    r"(?P<length>#)?(?P<indirect>!)?(?P<name>\w+|[@*#?$-])(?:\[(?P<item>[^\]]*)\])?(?P<rest>.*)", re.S
)
NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
OUTSIDE_OF_MARKS = "(?=(?:[^\0]*\0[^\0]*\0)*[^\0]*$)"
BRACES = re.compile(r"\{(?P<first>-?\d+|[A-Za-z])\.\.(?P<last>-?\d+|[A-Za-z])(?:\.\.(?P<step>-?\d+))?\}")
SPECIFICATION = re.compile(r"%(?P<flags>[-+ 0#]*\d*(?:\.\d+)?)(?P<kind>[sdifeEgGxXu%])")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=(.*)", re.S)
LOCAL = ("declare", "typeset", "local")
DECLARATIONS = ("export", "readonly", *LOCAL)
ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


def expand_word(raw: str, scope: Scope) -> list[str]:
    """The texts of one word: several for `"${list[@]}"` and `{a,b}`, none for an empty `$variable`."""
    found: list[str] = []
    for part in without_braces(raw):
        fields = _Fields(separators=scope.separators)
        _expand(part, scope, fields, quoted=False)
        found += fields.done()
    return found


def without_braces(raw: str) -> list[str]:
    """The words that `a{b,c}d` or `{1..3}` stand for; one word without braces."""
    position = 0
    while position < len(raw):
        character = raw[position]
        if character == "\\":
            position += 2
        elif character in "\"'`" or (character == "$" and raw[position + 1 : position + 2] in ("(", "{", "'")):
            position = closing(raw, position + (character == "$"))
        elif character == "{" and (found := _alternatives(raw, position)) is not None:
            end, texts = found
            rest = without_braces(raw[end:])
            return [raw[:position] + text + last for text in texts for last in rest]
        else:
            position += 1
    return [raw]


def _alternatives(raw: str, start: int) -> tuple[int, list[str]] | None:
    """The position after the brace at `start`, and the words that it stands for; None if it is only a brace."""
    if counted := BRACES.match(raw, start):
        return counted.end(), _counted(counted["first"], counted["last"], abs(int(counted["step"] or 1)) or 1)
    depth, cuts, position = 0, [start], start
    while position < len(raw):
        character = raw[position]
        if character == "\\":
            position += 1
        elif character in "\"'`" or (character == "$" and raw[position + 1 : position + 2] in ("(", "{", "'")):
            position = closing(raw, position + (character == "$")) - 1
        elif character == "{":
            depth += 1
        elif character == "," and depth == 1:
            cuts.append(position)
        elif character == "}":
            depth -= 1
            if depth == 0:
                break
        position += 1
    if depth or len(cuts) == 1 or position == len(raw):
        return None
    parts = [raw[left + 1 : right] for left, right in zip(cuts, [*cuts[1:], position], strict=True)]
    return position + 1, [text for part in parts for text in without_braces(part)]


def _counted(first: str, last: str, step: int) -> list[str]:
    if first.isalpha() != last.isalpha():
        return [f"{{{first}..{last}}}"]
    left, right = (ord(first), ord(last)) if first.isalpha() else (int(first), int(last))
    numbers = range(left, right + 1, step) if left <= right else range(left, right - 1, -step)
    width = max(len(first), len(last)) if any(re.match("-?0.", text) for text in (first, last)) else 0
    return [chr(number) if first.isalpha() else f"{number:0{width}d}" for number in numbers]


def split_at(text: str, separators: str, *, most: int = 0) -> list[str]:
    """A text cut at the characters of `IFS`, `most` times: at each with blanks around it, or at a run of blanks."""
    blanks, others = (re.escape("".join(c for c in separators if (c in BLANKS) == blank)) for blank in (True, False))
    space = f"[{blanks}]" if blanks else "(?!)"
    cut = f"(?:{space}*[{others}]{space}*|{space}+)" if others else f"{space}+"
    return re.split(cut + OUTSIDE_OF_MARKS, text, maxsplit=most)


def expand_text(raw: str, scope: Scope) -> str:
    """A word as one text, as in an assignment or a test."""
    fields = _Fields()
    _expand(raw, scope, fields, quoted=False)
    return " ".join(fields.done())


def array_items(raw: str, scope: Scope) -> list[str]:
    """The items of `(a b "$c")`."""
    words = [token.text for token in tokenize(raw[1:-1], "array") if not token.is_operator]
    return [text for word in words for text in expand_word(word, scope)]


def named_items(raw: str, scope: Scope) -> dict[str, str]:
    """The items of `([a]=b [c]="$d")`."""
    words = [token.text for token in tokenize(raw[1:-1], "array") if not token.is_operator]
    pairs = [pair for word in words if (pair := re.fullmatch(r"\[(.*?)\]=(.*)", word, re.S))]
    return {expand_text(pair[1], scope): expand_text(pair[2], scope) for pair in pairs}


class _Fields:
    """Texts under construction: quoted parts stay whole, the rest is split at the separators."""

    def __init__(self, *, separators: str = "") -> None:
        self._splits = bool(separators)
        self._separators = separators
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
        first, *others = split_at(text, self._separators)
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
    if following == "[" and "]" in raw[position:]:
        end = raw.index("]", position) + 1
        _put(fields, arithmetic(raw[position + 2 : end - 1], scope), quoted=quoted)
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
    if match["indirect"] and item in ("@", "*"):
        _list(name, item, "", scope.keys(name), scope, fields, quoted=quoted)
        return
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
    elif rest and not rest.startswith((":+", "+")):
        texts = [text if mark_of(text) else _cut(text, rest, scope) for text in texts]
    joint = scope.separators[:1]
    if not quoted:
        for position, text in enumerate(texts):
            fields.split((joint if position else "") + text)
    elif name == "*" or item == "*":
        fields.add(joint.join(texts))
    else:
        fields.items(texts)


def _item(name: str, item: str | None, scope: Scope) -> str | None:
    if name == "#":
        return str(len(scope.items("@") or []))
    if name in "?$-":
        return scope.status if name == "?" else unknown(f"`${name}` is known only while a script runs")
    if item is None:
        return scope.get(name)
    if scope.has_names(name):
        return scope.item(name, expand_text(item, scope))
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
    inner = _Fields()
    _expand(word, scope, inner, quoted=quoted and '"' not in word)
    text = " ".join(inner.done())
    if operation[-1] == "=":
        scope.variables[name] = text
    return text, word[:1] in ('"', "'")


def _cut(value: str, rest: str, scope: Scope) -> str:
    """A text after an operator for case, prefix, suffix, replacement or substring."""
    if rest in (",,", "^^", ",", "^"):
        changed = value.lower() if rest[0] == "," else value.upper()
        return changed if len(rest) == 2 else changed[:1] + value[1:]
    if rest[0] in "%#":
        greedy = rest[:2] in ("%%", "##")
        return _trimmed(value, expand_text(rest[2 if greedy else 1 :], scope), rest[0], greedy=greedy)
    if rest[0] == "/":
        anchor = rest[1] if rest[1:2] in ("#", "%") else ""
        pattern, _, new = rest.lstrip("/").removeprefix(anchor).partition("/")
        expression = fnmatch.translate(expand_text(pattern, scope)).removesuffix(r"\Z").removesuffix(r"\z")
        expression = ("\\A" if anchor == "#" else "") + expression + ("\\Z" if anchor == "%" else "")
        filled = expand_text(new, scope)
        return re.sub(expression, lambda match: filled, value, count=0 if rest.startswith("//") else 1)
    part = re.fullmatch(r":(?!-)\s*\(?(-?\d+)\)?(?::\s*(-?\d+))?", rest)
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
    named = scope.variables.get(name)
    if raw.startswith("(") and isinstance(named, dict):
        scope.variables[name] = (named if adds else {}) | named_items(raw, scope)
        return
    if raw.startswith("("):
        items = array_items(raw, scope)
        scope.variables[name] = [*(scope.items(name) or []), *items] if adds else items
        return
    value = expand_text(raw, scope)
    if item is not None and isinstance(named, dict):
        key = expand_text(item, scope)
        scope.variables[name] = named | {key: (named.get(key) or "") + value if adds else value}
        return
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
    flags = "".join(word for word in words[1:] if word.startswith("-"))
    for word in words[1:]:
        name = re.split(r"\+?=", word)[0]
        if words[0] in LOCAL and not word.startswith("-"):
            scope.hide(name)
        if "A" in flags and not word.startswith("-"):
            scope.variables[name] = {}
        if ASSIGNMENT.fullmatch(word):
            assign(scope, word)
        if "n" in flags and words[0] != "export":
            scope.variables[name] = unknown(f"`{words[0]} -n` is not supported")
        if words[0] == "export" and re.fullmatch(r"\w+", name):
            exported[name] = scope.get(name) or ""
    return exported


def own_environment(scope: Scope, words: Sequence[str]) -> dict[str, str]:
    """The variables that are assigned in front of a command and apply only to it."""
    pairs = [match for word in words if (match := ASSIGNMENT.fullmatch(word))]
    return {match[1]: expand_text(match[4], scope) for match in pairs}
