"""The project's source files and what they import, read with `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
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
    """One imported module, as a dotted name, and when it is imported."""

    module: str
    at_import: bool
    for_types: bool
    "under TYPE_CHECKING"
    names: tuple[str, ...] = ()
    "imported from the module: objects or submodules"

    @property
    def top(self) -> str:
        return self.module.split(".")[0]

    @property
    def ours(self) -> str:
        """`planning.types` of `rl_compat.planning.types`."""
        return ".".join(self.module.split(".")[1:])


@cache
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


def imports(tree: ast.AST, *, at_import: bool = True, for_types: bool = False) -> Iterator[Import]:
    """Every import of a file, those inside functions and under TYPE_CHECKING too."""
    for node in ast.iter_child_nodes(tree):
        modules, names = [], ()
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            modules, names = [node.module or ""], tuple(alias.name for alias in node.names)
        for module in modules:
            yield Import(module=module, at_import=at_import, for_types=for_types, names=names)
        is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        is_lazy = is_typing or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from imports(node, at_import=at_import and not is_lazy, for_types=for_types or is_typing)
