"""A configuration as TOML, each setting below its description."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from rl_compat.config.settings import sections, settings, values_of
from rl_compat.config.types import RunConfig

COMMENT_WIDTH = 100


def to_toml(config: RunConfig) -> str:
    """Every setting of a configuration. `load_config` of this text gives the configuration back."""
    values = values_of(config)
    return "\n".join(_section(section, values) for section in sections())


def format_value(value: Any) -> str:
    """A value in TOML syntax; None, which TOML lacks, as the text `none`."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(format_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        pairs = [f"{_format_name(name)} = {format_value(item)}" for name, item in value.items()]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    return repr(value)


def _section(section: str, values: Mapping[str, Any]) -> str:
    lines = [f"[{section}]"]
    for key, setting in settings().items():
        if setting.section == section:
            lines += textwrap.wrap(setting.sentence, COMMENT_WIDTH, initial_indent="# ", subsequent_indent="# ")
            lines.append(f"{setting.name} = {format_value(values[key])}")
    return "\n".join(lines) + "\n"


def _format_name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
