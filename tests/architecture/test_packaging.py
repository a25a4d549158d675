"""What is installed is what is there."""

from __future__ import annotations

import importlib
import tomllib

import pytest
from setuptools import find_packages

import rl_compat
from architecture.source_tree import REPOSITORY, imports, sources
from rl_compat.cli.app import COMMANDS

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
ROOTS = ("rl_compat", "doctor", "profiles")


def folder_of(package: str) -> str:
    inside = package.removeprefix("rl_compat.")
    return (inside if inside.split(".")[0] in ROOTS else package).replace(".", "/")


def test_every_package_is_found_and_says_what_it_is() -> None:
    files = [path for root in ROOTS for path in (REPOSITORY / root).rglob("__init__.py")]
    names = {path.parent.relative_to(REPOSITORY).as_posix().replace("/", ".") for path in files}
    expected = {name if name.startswith("rl_compat") else f"rl_compat.{name}" for name in names}

    assert set(find_packages(str(REPOSITORY), include=SETUPTOOLS["packages"]["find"]["include"])) == expected
    for package in expected:
        text = (REPOSITORY / folder_of(package) / "__init__.py").read_text(encoding="utf-8")
        assert text.startswith('"""'), package


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for root in ROOTS for path in (REPOSITORY / root).rglob("*.py")}

    assert {folder for folder in folders if not (folder / "__init__.py").exists()} == set()


def test_every_data_pattern_matches_a_file() -> None:
    for package, patterns in SETUPTOOLS["package-data"].items():
        for pattern in patterns:
            assert list((REPOSITORY / folder_of(package)).glob(pattern)), f"{package}: {pattern}"


@pytest.mark.parametrize("name", ["doctor", "profiles"])
def test_the_roots_outside_are_linked_into_the_package(name: str) -> None:
    assert (REPOSITORY / "rl_compat" / name).resolve() == REPOSITORY / name


def test_the_version_is_one() -> None:
    assert rl_compat.__version__ == PROJECT["project"]["version"]


def test_every_command_is_listed_once_with_its_app() -> None:
    modules = {
        f"rl_compat.{source.name.replace('/', '.')}"
        for source in sources()
        if source.area == "cli" and any(found.module == "typer" for found in imports(source.tree))
    } - {"rl_compat.cli.app", "rl_compat.cli.common", "rl_compat.cli.options"}

    assert modules == {module for _, module, _ in COMMANDS}
    assert len({name for name, _, _ in COMMANDS}) == len(COMMANDS)
    for _, module, _ in COMMANDS:
        assert importlib.import_module(module).app is not None


@pytest.mark.parametrize("name", rl_compat.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(rl_compat, name) is not None
    assert name in dir(rl_compat)


def test_another_name_is_not_there() -> None:
    with pytest.raises(AttributeError, match="`Actor`"):
        rl_compat.Actor  # noqa: B018
