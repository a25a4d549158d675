"""Write docs/api.md from the signatures and docstrings of the public names.

python scripts/api_reference.py            # write the page
python scripts/api_reference.py --check    # exit code 1 if the page is not current
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, is_typeddict

import rl_compat
from rl_compat.config.options import option_keys
from rl_compat.config.settings import settings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
HEAD = """# Python API

Generated from the docstrings by `scripts/api_reference.py`; a test keeps it current. [examples](../examples) has one
file per way of training.

Calls on a role return a `concurrent.futures.Future`: the call runs in the background, and `.result()` returns its
value or raises its error. Errors are subclasses of `rl_compat.errors.RLCompatError` with a message and a hint.
"""


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the page instead of writing it")
    text = page()
    if parser.parse_args().check:
        return 0 if PAGE.read_text(encoding="utf-8") == text else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


def page() -> str:
    """The page as Markdown."""
    names = [name for name in rl_compat.__all__ if not name.startswith("__")]
    listed = "\n".join(f"- [`{name}`](#{name.lower()}): {summary(getattr(rl_compat, name))}" for name in names)
    parts = [HEAD, listed, *(section(name, getattr(rl_compat, name)) for name in names)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def summary(public: Any) -> str:
    """The first paragraph of the docstring, on one line."""
    return " ".join((inspect.getdoc(public) or "").split("\n\n")[0].split())


def section(name: str, public: Any) -> str:
    """One public name: signature, docstring, fields and methods."""
    lines = [f"## {name}", inspect.getdoc(public) or ""]
    if is_typeddict(public):
        return "\n\n".join([*lines, *fields(public)])
    if not is_internal(public):
        lines.insert(1, code(f"{name}{signature(public)}"))
    if inspect.isclass(public):
        lines += fields(public)
        for method, value in methods(public):
            lines += [f"### {name}.{method}", *described(name, method, value)]
    return "\n\n".join(lines)


def is_internal(public: Any) -> bool:
    """Whether only the package itself makes the call: it takes the plan of a session."""
    return "SharedPlan" in signature(public)


def described(owner: str, name: str, value: Any) -> list[str]:
    """A method with its signature, or a property with its type, and the docstring."""
    if isinstance(value, property):
        assert value.fget is not None
        kind = inspect.signature(value.fget).return_annotation
        return [code(f"{owner}.{name}: {kind}"), inspect.getdoc(value) or ""]
    return [code(f"{owner}.{name}{signature(value)}"), inspect.getdoc(value) or ""]


def methods(public: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties with a docstring, in the order of their definition, inherited ones last."""
    seen = set()
    for base in public.__mro__:
        if not base.__module__.startswith("rl_compat"):
            continue
        for name, raw in vars(base).items():
            value = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw
            is_public = not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
            if is_public and inspect.isfunction(value) and is_internal(value):
                continue
            if is_public and name not in seen and inspect.getdoc(value):
                seen.add(name)
                yield name, value


def fields(public: type) -> list[str]:
    """A table of a dataclass's or TypedDict's fields and their sentences."""
    if not dataclasses.is_dataclass(public) and not is_typeddict(public):
        return []
    told = sentences(public)
    if dataclasses.is_dataclass(public):
        rows = [(item.name, item.type, shown(item)) for item in dataclasses.fields(public) if item.init]
    else:
        known = {name: settings()[key] for name, key in option_keys(public).items()}
        rows = [(name, kind, f"`{known[name].default!r}`") for name, kind in annotations(public).items()]
        told = {name: f"{setting.sentence} (`{setting.key}`)" for name, setting in known.items()}
    cells = [f"| `{name}` | `{escaped(kind)}` | {value} | {told.get(name, '')} |" for name, kind, value in rows]
    return ["\n".join(["| field | type | default | |", "|---|---|---|---|", *cells])]


def annotations(public: type) -> dict[str, Any]:
    """The fields of a TypedDict with their types as written."""
    texts = {name: getattr(kind, "__forward_arg__", str(kind)) for name, kind in public.__annotations__.items()}
    return {name: text.removeprefix("Annotated[").rpartition(", ")[0] for name, text in texts.items()}


def shown(item: dataclasses.Field[Any]) -> str:
    if item.default is not dataclasses.MISSING:
        return f"`{item.default!r}`"
    return (
        "" if item.default_factory is dataclasses.MISSING else f"`{getattr(item.default_factory, '__name__', '…')}()`"
    )


def sentences(public: type) -> dict[str, str]:
    """Field to the sentence below it, bases included."""
    found: dict[str, str] = {}
    for base in reversed(getattr(public, "__orig_bases__", ()) + public.__mro__[:-1]):
        if not getattr(base, "__module__", "").startswith("rl_compat"):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, below in pairwise(body.body):
            is_field = isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            if is_field and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[statement.target.id] = " ".join(str(below.value.value).split())
    return found


def signature(public: Any) -> str:
    """Parameters and return type, one parameter per line where they do not fit."""
    target = public.__init__ if inspect.isclass(public) and not dataclasses.is_dataclass(public) else public
    parameters = [item for item in inspect.signature(target).parameters.values() if item.name not in ("self", "cls")]
    returned = "" if inspect.isclass(public) else inspect.signature(target).return_annotation
    arrow = f" -> {returned}" if isinstance(returned, str) and returned else ""
    words, starred = [], False
    for item in parameters:
        if item.kind is item.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        starred = starred or item.kind is item.VAR_POSITIONAL
        words.append(parameter(item))
    line = f"({', '.join(words)}){arrow}"
    return line if len(line) < 90 else "(\n    " + ",\n    ".join(words) + f",\n){arrow}"


def parameter(item: inspect.Parameter) -> str:
    """`name: type = default`, with the type as it is written in the source."""
    stars = {item.VAR_POSITIONAL: "*", item.VAR_KEYWORD: "**"}.get(item.kind, "")
    kind = "" if item.annotation is item.empty else f": {item.annotation}"
    default = "" if item.default is item.empty else f"{' = ' if kind else '='}{item.default!r}"
    return f"{stars}{item.name}{kind}{default}"


def code(text: str) -> str:
    return f"```python\n{text}\n```"


def escaped(text: Any) -> str:
    return str(text).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
