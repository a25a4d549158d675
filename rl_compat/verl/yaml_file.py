"""A YAML file of Hydra or OmegaConf as arguments: nested groups become dotted keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from rl_compat.config.arguments import Argument
from rl_compat.errors import ConfigError, quoted

OWN_CONFIGS = ("ppo_trainer", "ppo_megatron_trainer")
"configurations that ship with verl and need no file here"
NOT_SETTINGS = ("defaults", "hydra")
MOST_FILES = 20


def read_yaml(path: Path) -> tuple[list[Argument], list[str]]:
    """The keys of a file as arguments, with those of files in its `defaults`, and notes. Raises ConfigError.

    A file in `defaults` that cannot be found is the problem of the argument `defaults`.
    """
    reading = _Reading(folders=[path.parent])
    values = reading.merged(path, depth=0)
    arguments = [Argument(text=f"{key}={value}", key=key, value=value, inherited=True) for key, value in values.items()]
    return [*reading.missing, *arguments], reading.notes


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


@dataclass(slots=True)
class _Reading:
    """A file of Hydra, with the files that its `defaults` name."""

    folders: list[Path]
    "searched for the files of `defaults`"
    missing: list[Argument] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def merged(self, path: Path, *, depth: int) -> dict[str, str]:
        tree = _load(path)
        if not isinstance(tree, Mapping):
            raise ConfigError(f"`{path}` is not a tree of keys and values", hint="write `key: value` on each line")
        self.folders += _search_path(tree, path)
        own = dict(_flat({key: value for key, value in tree.items() if key not in NOT_SETTINGS}, ""))
        found: dict[str, str] = {}
        entries = list(tree.get("defaults") or ())
        for entry in entries if "_self_" in entries else [*entries, "_self_"]:
            found |= own if entry == "_self_" else self._of_entry(entry, path, depth)
        return found

    def _of_entry(self, entry: Any, path: Path, depth: int) -> dict[str, str]:
        """The keys of one entry of a `defaults` list: `name`, or `group: name`, which verl may ship itself."""
        group, name = next(iter(entry.items())) if isinstance(entry, Mapping) and entry else ("", entry)
        if name is None or str(group).startswith("override ") or PurePath(str(name)).name in OWN_CONFIGS:
            return {}
        group, _, package = str(group).removeprefix("optional ").partition("@")
        below = PurePath(group.strip("/"), str(name).removeprefix("optional ").strip("/"))
        file = next((file for folder in self.folders if (file := folder / f"{below}.yaml").is_file()), None)
        if file is not None and depth < MOST_FILES:
            values = self.merged(file, depth=depth + 1)
            package = package or group.strip("/").replace("/", ".")
            return {f"{package}.{key}" if package else key: value for key, value in values.items()}
        if group:
            self.notes.append(f"`{group}: {name}` in `{path}` is taken as verl ships it")
            return {}
        problem = f"`{path}` includes it, and there is no `{below}.yaml` in {quoted(dict.fromkeys(self.folders))}"
        hint = "put the file there, or name its folder in `hydra.searchpath`"
        missing = Argument(text=f"defaults={name}", key="defaults", value=str(name), problem=problem, hint=hint)
        self.missing.append(missing)
        return {}


def _search_path(tree: Mapping[Any, Any], path: Path) -> list[Path]:
    """The folders of `hydra.searchpath`, relative to the current folder or to that of the file."""
    named = tree.get("hydra") if isinstance(tree.get("hydra"), Mapping) else {}
    texts = [str(text).removeprefix("file://") for text in (named or {}).get("searchpath") or ()]
    return [folder / text for text in texts if "://" not in text for folder in (Path(), path.parent)]


def _load(path: Path) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(f"`{path}` is YAML and PyYAML is not installed", hint="pip install pyyaml") from error
    try:
        text = path.read_text(encoding="utf-8")
        twice = _repeated(yaml.compose(text, Loader=yaml.SafeLoader))
        if twice is not None:
            fact = f"`{path}` line {twice.start_mark.line + 1}: `{twice.value}` is there a second time"
            raise ConfigError(fact, hint="merge the two: only one of them can count")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"`{path}` line {mark.line + 1}" if mark else f"`{path}`"
        raise ConfigError(f"{place} is not valid YAML: {getattr(error, 'problem', None) or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"`{path}` is not text in UTF-8") from error
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror}") from error


def _repeated(node: Any) -> Any:
    """The first key that its mapping already has, as a node of YAML; None if there is none."""
    children = node.value if node is not None and isinstance(node.value, list) else []
    keys = [pair[0] for pair in children if isinstance(pair, tuple)]
    known: set[str] = set()
    for key in keys:
        if key.value in known:
            return key
        known.add(str(key.value))
    below = (_repeated(child[1] if isinstance(child, tuple) else child) for child in children)
    return next((found for found in below if found is not None), None)


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
