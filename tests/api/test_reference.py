"""docs/api.md is complete and current."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import rl_compat

ROOT = Path(__file__).parents[2]
PUBLIC = [name for name in rl_compat.__all__ if not name.startswith("__")]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_reference", ROOT / "scripts" / "api_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(script: ModuleType) -> None:
    """Run `python scripts/api_reference.py` after a docstring or signature has changed."""
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == script.page()


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_and_method_has_a_docstring(name: str, script: ModuleType) -> None:
    public = getattr(rl_compat, name)
    text = script.section(name, public)

    assert inspect.getdoc(public)
    if inspect.isclass(public):
        own = [key for key, value in vars(public).items() if not key.startswith("_") and inspect.isfunction(value)]
        assert [key for key in own if f"### {name}.{key}\n" not in text] == []
