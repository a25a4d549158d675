"""The project's source files and what they import, read with `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = {"rl_compat": REPOSITORY / "rl_compat", "doctor": REPOSITORY / "doctor", "profiles": REPOSITORY / "profiles"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file: `hardware/nvml` in area `hardware`."""

    name: str
    tree: ast.Module

    @property
    def area(self) -> str:
        return self.name.split("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module, as a dotted name, and whether importing the file imports it."""

    module: str
    at_import: bool

    @property
    def top(self) -> str:
        return self.module.split(".")[0]

    @property
    def ours(self) -> str:
        """`planning.types` of `rl_compat.planning.types`."""
        return ".".join(self.module.split(".")[1:])


def sources() -> list[Source]:
    """Every file of the three roots, by its path inside the package."""
    found = []
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder).with_suffix("").as_posix()
            if package == "rl_compat" and inside.split("/")[0] in PACKAGES:
                continue
            name = inside if package == "rl_compat" else f"{package}/{inside}"
            found.append(Source(name=name, tree=ast.parse(path.read_text(encoding="utf-8"))))
    return found


def imports(tree: ast.AST, *, at_import: bool = True) -> Iterator[Import]:
    """Every import of a file, those inside functions and under TYPE_CHECKING too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(module=alias.name, at_import=at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield Import(module=node.module or "", at_import=at_import)
        else:
            yield from imports(node, at_import=at_import and not _is_lazy(node))


def _is_lazy(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return True
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
