"""Pip's settings for package indexes, from its files and the environment."""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SECTIONS = ("global", "install")
"read by `pip install`; later ones take precedence"
SETTINGS = ("index-url", "no-index")


def read_pip_settings(environment: Mapping[str, str], *, files: Sequence[Path] | None = None) -> dict[str, str]:
    """`index-url` and `no-index`, if set. Variables take precedence over files, and later files over earlier ones."""
    found: dict[str, str] = {}
    for file in pip_files(environment) if files is None else files:
        found |= _read(file)
    for name in SETTINGS:
        value = environment.get(f"PIP_{name.upper().replace('-', '_')}")
        if value:
            found[name] = value
    return found


def pip_files(environment: Mapping[str, str]) -> list[Path]:
    """Pip's settings files: of the machine, the user and this Python, and the one in `PIP_CONFIG_FILE`."""
    named = environment.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path(environment.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111
    machine = [
        Path(folder) / "pip" for folder in reversed((environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"))
    ]
    user = Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "pip"
    folders = [*machine, Path("/etc"), home / ".pip", user, Path(sys.prefix)]
    return [*(folder / "pip.conf" for folder in folders), *([Path(named)] if named else [])]


def _read(file: Path) -> dict[str, str]:
    """The settings of one file; empty if it is missing or malformed."""
    parser = configparser.RawConfigParser()
    try:
        parser.read(file, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        return {}
    values = {
        name.replace("_", "-"): value
        for section in SECTIONS
        if parser.has_section(section)
        for name, value in parser.items(section)
    }
    return {name: values[name] for name in SETTINGS if values.get(name)}
