"""The values of a configuration while it is put together: what was given, where, and what follows from it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from rl_compat.config.report import KeyVerdict
from rl_compat.config.rules.follow import followed
from rl_compat.config.settings import build, settings, settings_by_algorithm
from rl_compat.config.toml_file import flat, read_toml
from rl_compat.config.types import RunConfig
from rl_compat.errors import quoted

Source = Literal["default", "built-in", "file", "command line", "verl", "algorithm", "follows"]
"""`built-in` is a value of a settings file that ships with the package, `algorithm` one that `algorithm.name` sets, and
`follows` one that gave way to a value that was given"""

GIVEN: tuple[Source, ...] = ("file", "command line", "verl")
PATHS = (
    "model.path",
    "model.critic_path",
    "model.tokenizer",
    "model.chat_template",
    "data.train_files",
    "data.val_files",
    "reward.functions",
    "trainer.output_dir",
    "trainer.resume",
)
"paths in which a leading `~` is the home folder"


@dataclass(slots=True)
class GivenValues:
    """Values collected so far, each with its source and place, and the verdict on each argument."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    report: list[KeyVerdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    run: str | None = None
    "the built-in run among them"

    def put(self, key: str, value: Any, source: Source, origin: str) -> None:
        self.values[key] = _expand_home(key, value)
        self.sources[key] = source
        self.origins[key] = origin

    def drop(self, key: str) -> None:
        for table in (self.values, self.sources, self.origins):
            table.pop(key, None)

    def keys_of(self, *sources: Source) -> list[str]:
        return [key for key, source in self.sources.items() if source in sources]

    def read(self, path: Path) -> None:
        """Add the values of a settings file. Raises ConfigError."""
        self.run = path.stem if path in embedded_runs().values() else None
        for key, (value, place) in read_toml(path).items():
            if self.run is None:
                self.put(key, value, "file", place)
            else:
                self.put(key, value, "built-in", f"the built-in run `{self.run}`")

    def complete(self) -> RunConfig:
        """The configuration, with the values that follow from the algorithm's name and from other values."""
        if self.run is not None:
            given = quoted(self.keys_of(*GIVEN))
            changed = f", except for {given}" if given else ""
            self.notes.insert(0, f"the settings are those of the built-in run `{self.run}`{changed}")
        base = build({key: self.values[key] for key in self.keys_of("built-in")})
        self._follow_algorithm(base)
        batch, mini = "trainer.batch_size", "trainer.mini_batch_size"
        if batch in self.values and mini not in self.values:
            self.put(mini, self.values[batch], "default", self.origins[batch])
        config = build(self.values)
        for change in followed(config, base, self.keys_of(*GIVEN)):
            self._replace(change.key, change.value, "follows", change.cause)
        return build(self.values)

    def _follow_algorithm(self, base: RunConfig) -> None:
        """Set the defaults of the algorithm where nobody set a value, or where a built-in run set it for another."""
        same = self.values.get("algorithm.name") in (None, base.algorithm.name)
        kept = self.values if same else self.keys_of(*GIVEN)
        for key, value in settings_by_algorithm(self.values, kept).items():
            self._replace(key, value, "algorithm", "algorithm.name")

    def _replace(self, key: str, value: Any, source: Source, cause: str) -> None:
        before = self.values.get(key, settings()[key].default)
        if source == "follows" or self.sources.get(key) == "built-in":
            self.notes.append(f"`{key}` is {_shown(value)} in place of {_shown(before)}: it follows `{cause}`")
        self.put(key, value, source, f"`{cause}={_shown(self.values[cause])}`")


def config_of(values: Mapping[str, Any], *, run: str | None = None) -> RunConfig:
    """The configuration of a file with these values by dotted key, on top of a built-in run; unchecked.

    The standard library suffices.
    """
    given = GivenValues()
    if run is not None:
        for section, table in tomllib.loads(embedded_runs()[run].read_text(encoding="utf-8")).items():
            for key, value in flat(section, table):
                given.put(key, tuple(value) if isinstance(value, list) else value, "built-in", "")
    for key, value in values.items():
        given.put(key, value, "file", "")
    return given.complete()


@cache
def embedded_runs() -> Mapping[str, Path]:
    """The settings files that ship with the package, by name, such as `gsm8k`."""
    folder = Path(str(resources.files("rl_compat.config"))) / "runs"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def _expand_home(key: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_expand_home(key, item) for item in value)
    starts = key in PATHS and isinstance(value, str) and value.startswith("~")
    return str(Path(value).expanduser()) if starts else value


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
