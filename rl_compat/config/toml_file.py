"""A settings file: TOML whose sections are those of RunConfig, read into dotted keys with their lines, and written."""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_compat.config.settings import POOLS, sections, settings, values_of
from rl_compat.config.suggest import normalize, suggestion
from rl_compat.config.types import RunConfig
from rl_compat.config.values import Mismatch, coerce
from rl_compat.errors import ConfigError, nearest

VERL_SECTIONS = ("actor_rollout_ref", "critic", "reward_model", "custom_reward_function")


def read_toml(path: Path) -> dict[str, tuple[Any, str]]:
    """The settings of a file by dotted key, each with its place. Raises ConfigError for a wrong file, key or type."""
    text = _read_text(path)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        fact = str(error)[:1].lower() + str(error)[1:]
        fact = fact.replace("at end of document", f"at line {len(text.splitlines())}, the end of the file")
        hint = 'text needs quotes, as in `path = "folder"`; lists are `[1, 2]`'
        if path.suffix == ".json":
            hint = "settings files are TOML: `[section]` on a separate line, then `key = value`"
        raise ConfigError(f"`{path}` is not valid TOML: {fact}", hint=hint) from error
    lines = key_lines(text)
    found = {}
    for section, table in data.items():
        if section not in (*sections(), POOLS) or not isinstance(table, Mapping):
            raise _unknown_section(path, lines, section, table)
        for key, value in flat(section, table):
            place = _place(path, lines, key)
            if key not in settings():
                raise ConfigError(f"{place}: there is no setting `{key}`", hint=suggestion(key))
            try:
                found[key] = (coerce(value, settings()[key].hint), place)
            except Mismatch as error:
                fact = f"{place}: `{key}` takes {error.expected}, not {toml_words(value)}"
                raise ConfigError(fact, hint=error.hint) from error
    return found


def key_lines(text: str) -> dict[str, int]:
    """Dotted key, or section, to its line number, counted from 1."""
    found: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line)
        pair = re.match(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[\w-]+)*)\s*=""", line)
        if header:
            section = header.group(1)
            found.setdefault(section, number)
        elif pair:
            name = re.sub(r"[\s\"']", "", pair.group(1))
            found.setdefault(f"{section}.{name}" if section else name, number)
    return found


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"the settings file `{path}` does not exist", hint=_missing_hint(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"`{path}` is not text in UTF-8", hint="settings files are TOML") from error
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror}") from error


def _missing_hint(path: Path) -> str:
    folder = path.parent
    close = nearest(path.name, [file.name for file in folder.glob("*.toml")]) if folder.is_dir() else None
    return f"did you mean `{folder / close}`" if close else "omit the file to run with the defaults"


def flat(section: str, table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The dotted keys and values of a section's table, including its groups."""
    for name, value in table.items():
        key = f"{section}.{name}"
        if key in sections() and isinstance(value, Mapping):
            yield from flat(key, value)
        else:
            yield key, value


def _unknown_section(path: Path, lines: Mapping[str, int], section: str, table: Any) -> ConfigError:
    place = _place(path, lines, section)
    if not isinstance(table, Mapping):
        return ConfigError(f"{place}: `{section}` is outside of a section", hint=suggestion(section))
    if section in VERL_SECTIONS:
        hint = "pass verl's keys on the command line: `rlc train actor_rollout_ref.model.path=…`"
        return ConfigError(f"{place}: there is no section [{section}]", hint=hint)
    close = nearest(normalize(section), (*sections(), POOLS))
    names = list(table) or [""]
    hint = f"did you mean [{close}]" if close else suggestion(f"{section}.{names[0]}")
    return ConfigError(f"{place}: there is no section [{section}]", hint=hint)


def toml_words(value: Any) -> str:
    """A value of a TOML file for an error message."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'the text `"{value}"`'
    if isinstance(value, Mapping):
        return "a section"
    return f"`{value}`"


def _place(path: Path, lines: Mapping[str, int], key: str) -> str:
    number = lines.get(key)
    return f"`{path}`" if number is None else f"`{path}` line {number}"


COMMENT_WIDTH = 100


def to_toml(config: RunConfig) -> str:
    """Every setting of a configuration below its description. `load_config` of this text gives the same back."""
    found: dict[str, list[str]] = {section: [] for section in sections()}
    for key, value in values_of(config).items():
        setting = settings()[key]
        lines = found.setdefault(setting.section, [])
        lines += textwrap.wrap(setting.sentence, COMMENT_WIDTH, initial_indent="# ", subsequent_indent="# ")
        lines.append(f"{setting.name} = {format_value(value)}")
    return "\n".join("\n".join([f"[{section}]", *lines]) + "\n" for section, lines in found.items())


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
        bare = re.compile(r"[A-Za-z0-9_-]+")
        names = {name: name if bare.fullmatch(name) else json.dumps(name, ensure_ascii=False) for name in value}
        pairs = [f"{names[name]} = {format_value(item)}" for name, item in value.items()]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    return repr(value)
