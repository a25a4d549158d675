"""The settings file of a configuration from verl's keys: values that differ from the defaults, and their origins."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rl_compat.config.given import GIVEN, config_of
from rl_compat.config.load import LoadedConfig
from rl_compat.config.report import KeyVerdict
from rl_compat.config.settings import settings, values_of
from rl_compat.config.toml_file import COMMENT_WIDTH, format_value
from rl_compat.errors import ConfigError


def translated_toml(loaded: LoadedConfig) -> str:
    """TOML of the configuration; comments name the verl keys above each setting, and untranslated keys at the end."""
    wanted = values_of(loaded.config)
    comments = _comments(loaded.report)
    lines: list[str] = []
    for section in dict.fromkeys(settings()[key].section for key in wanted):
        keys = [key for key in _needed(loaded, wanted) if settings()[key].section == section]
        if keys:
            lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        for key in keys:
            lines += comments.get(key, [])
            lines.append(f"{settings()[key].name} = {format_value(wanted[key])}")
    lines += _missing(loaded.report, spaced=bool(lines))
    return "\n".join(lines) + "\n" if lines else ""


def write_toml(path: Path, text: str) -> None:
    """Write a settings file and create its folder. Raises ConfigError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be written: {error.strerror}") from error


def _needed(loaded: LoadedConfig, wanted: Mapping[str, Any]) -> list[str]:
    """The settings that a file needs to load to these values, in the order of the settings."""
    given = {key for key, source in loaded.sources.items() if source in GIVEN}
    keys = {key for key in given if wanted[key] != settings()[key].default}
    read_back = values_of(config_of({key: wanted[key] for key in keys}))
    return [key for key in wanted if key in keys or read_back.get(key) != wanted[key]]


def _comments(report: Iterable[KeyVerdict]) -> dict[str, list[str]]:
    comments: dict[str, list[str]] = {}
    for line in report:
        if line.verdict in ("honoured", "translated") and line.native_key not in (None, line.key):
            text = f"{line.key}={line.value}" + (f": {line.reason}" if line.reason else "")
            for key in str(line.native_key).split(", "):
                comments.setdefault(key, []).extend(_wrapped(text))
    return comments


def _missing(report: Iterable[KeyVerdict], *, spaced: bool) -> list[str]:
    refused = [line for line in report if line.verdict == "refused"]
    if not refused:
        return []
    lines = [text for line in refused for text in _wrapped(f"{line.key}={line.value}: {line.reason}")]
    return [*([""] if spaced else []), "# not translated:", *lines]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        COMMENT_WIDTH,
        initial_indent="# ",
        subsequent_indent="#   ",
        break_long_words=False,
        break_on_hyphens=False,
    )
