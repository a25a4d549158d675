"""Settings files that ship with the package, by name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from rl_compat.config.load import config_of
from rl_compat.config.toml_file import flat
from rl_compat.config.types import RunConfig

DEFAULT = "gsm8k"
"settings of `rlc train` without arguments"


def embedded_runs() -> dict[str, Path]:
    """Path by name, such as `gsm8k`."""
    folder = Path(str(resources.files("rl_compat.config"))) / "runs"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def embedded_config(name: str, values: Mapping[str, Any]) -> RunConfig:
    """The settings of a shipped file, with `values` by dotted key on top; unchecked, with the standard library."""
    tables = tomllib.loads(embedded_runs()[name].read_text(encoding="utf-8"))
    own = {key: value for section, table in tables.items() for key, value in flat(section, table)}
    lists_as_tuples = {key: tuple(value) if isinstance(value, list) else value for key, value in own.items()}
    return config_of(lists_as_tuples | dict(values))
