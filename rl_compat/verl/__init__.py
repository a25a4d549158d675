"""verl's commands, scripts and YAML files as settings. The package is a `Dialect` for `load_config`."""

from __future__ import annotations

from rl_compat.verl.source import is_file, read_file
from rl_compat.verl.translate import default_text, defaults_that_differ, expand, is_key, nearest_key, translate

__all__ = [
    "default_text",
    "defaults_that_differ",
    "expand",
    "is_file",
    "is_key",
    "nearest_key",
    "read_file",
    "translate",
]
