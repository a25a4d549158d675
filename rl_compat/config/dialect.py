"""The interface with which `load_config` reads the files and keys of another program."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rl_compat.config.arguments import Argument
from rl_compat.config.report import KeyVerdict
from rl_compat.config.types import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignArguments:
    """Arguments in order, and notes on how they were read."""

    arguments: Sequence[Argument]
    notes: Sequence[str] = ()


@dataclass(slots=True)
class Translation:
    """Native values by dotted key, the argument behind each, and a verdict on every key."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    verdicts: list[KeyVerdict] = field(default_factory=list)


class Dialect(Protocol):
    """The files and keys of another program. The package `rl_compat.verl` is one."""

    def is_file(self, path: Path) -> bool:
        """Whether a file belongs to that program and is not TOML."""

    def read_file(self, path: Path, words: Sequence[str]) -> ForeignArguments:
        """The arguments of a file, followed by those of the command line. Raises ConfigError."""

    def is_key(self, key: str) -> bool:
        """Whether a key is known."""

    def nearest_key(self, key: str) -> str | None:
        """The known key closest to a misspelled one."""

    def default_text(self, key: str) -> str | None:
        """The default of a key as command-line text."""

    def expand(self, arguments: Sequence[Argument]) -> list[Argument]:
        """The arguments, with one argument per key in place of groups of keys."""

    def translate(
        self, arguments: Sequence[Argument], *, base: RunConfig, given_natively: Collection[str] = ()
    ) -> Translation:
        """Translate arguments with known keys, on top of a configuration."""

    def defaults_that_differ(self, config: RunConfig, given: Collection[str]) -> list[KeyVerdict]:
        """Defaults of the program that differ from the configuration and were not set."""
