"""A YAML file of Hydra or OmegaConf as arguments: nested groups become dotted keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_compat.config.arguments import Argument
from rl_compat.errors import ConfigError

OWN_GROUPS = ("ppo_trainer", "ppo_megatron_trainer", "_self_")
"entries of a `defaults` list that stand for what verl ships"
NOT_SETTINGS = ("defaults", "hydra")
MOST_FILES = 20


def read_yaml(path: Path) -> tuple[list[Argument], list[str]]:
    """The keys of a file as arguments, after those of files in its `defaults`, and notes. Raises ConfigError."""
    notes: list[str] = []
    arguments = [
        Argument(text=f"{key}={value}", key=key, value=value, inherited=True)
        for key, value in _merged(path, notes, depth=0).items()
    ]
    return arguments, notes


def find_yaml(flags: Mapping[str, str], folders: Sequence[Path]) -> Path | None:
    """The file of `--config-name` in `--config-dir` or `--config-path`, if it exists."""
    name = flags.get("--config-name")
    if not name:
        return None
    below = [flags[flag] for flag in ("--config-dir", "--config-path") if flag in flags] or [".", "config"]
    for folder in (Path(), *folders):
        for part in below:
            for candidate in (folder / part / name, folder / part / f"{name}.yaml"):
                if candidate.is_file():
                    return candidate
    return None


def _merged(path: Path, notes: list[str], *, depth: int) -> dict[str, str]:
    tree = _load(path)
    if not isinstance(tree, Mapping):
        raise ConfigError(f"`{path}` is not a tree of keys and values", hint="write `key: value` on each line")
    found: dict[str, str] = {}
    for entry in tree.get("defaults") or ():
        found |= _of_entry(entry, path, notes, depth)
    return found | dict(_flat({key: value for key, value in tree.items() if key not in NOT_SETTINGS}, ""))


def _of_entry(entry: Any, path: Path, notes: list[str], depth: int) -> dict[str, str]:
    """Read one entry of a Hydra `defaults` list: a file in the same folder, or one of the configurations of verl."""
    if not isinstance(entry, str) or entry in OWN_GROUPS:
        return {}
    file = path.parent / f"{entry}.yaml"
    if depth < MOST_FILES and file.is_file():
        return _merged(file, notes, depth=depth + 1)
    notes.append(f"`{path}` includes `{entry}`, which is not in the same folder; only the keys in this file are read")
    return {}


def _load(path: Path) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(f"`{path}` is YAML and PyYAML is not installed", hint="pip install pyyaml") from error
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"`{path}` line {mark.line + 1}" if mark else f"`{path}`"
        raise ConfigError(f"{place} is not valid YAML: {getattr(error, 'problem', None) or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"`{path}` is not text in UTF-8") from error
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror}") from error


def _flat(tree: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if str(name) == "_target_":
            continue
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{key}.")
        else:
            yield key, _as_text(value)


def _as_text(value: Any) -> str:
    """A value in command-line syntax."""
    if not isinstance(value, str):
        return json.dumps(value, default=str)
    quoted = any(character in value for character in ",[]{}\"'") and "${" not in value
    return json.dumps(value, ensure_ascii=False) if quoted else value
