"""Profiles: the preferences and size limits of a family of cards, read from TOML."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from rl_compat.errors import ConfigError
from rl_compat.units import parse_bytes

CONCERNS = ("compute_dtype", "rollout_dtype", "frozen_storage_dtype", "attention", "rollout_engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Hard conditions: a profile never applies to a device that does not meet one."""

    device: Literal["cpu", "cuda"]
    min_capability: tuple[int, int] | None = None
    max_capability: tuple[int, int] | None = None
    tensor_cores: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    order: tuple[str, ...]
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper limits of useful sizes, and memory overhead in addition to tensors."""

    context_bytes: int
    "of the CUDA context and libraries; on a CPU, of the interpreter and its libraries"
    allocator_factor: float
    "memory reserved by the allocator over memory requested from it"
    max_num_seqs: int
    max_micro_batch_size: int
    max_tokens_per_micro_batch: int
    enough_tokens_per_micro_batch: int
    "above it, a larger micro-batch gains less than gradient checkpointing costs"
    max_prefill_tokens: int
    max_logprob_chunk_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    name: str
    summary: str
    match: Match
    prefer: Mapping[str, Preference]
    limits: Limits


def parse_profile(name: str, text: str) -> Profile:
    """A profile from its TOML. Raises ConfigError, naming the file and the key."""
    try:
        table = _Table(f"profile `{name}.toml`", tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"profile `{name}.toml`: {error}") from error
    table.only(("summary", "match", "prefer", "limits"))
    return Profile(
        name=name,
        summary=table.text("summary"),
        match=_parse_match(table.section("match")),
        prefer=_parse_preferences(table.section("prefer")),
        limits=_parse_limits(table.section("limits")),
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """A TOML table that names its location in errors."""

    where: str
    values: Mapping[str, Any]
    prefix: str = ""

    def section(self, key: str) -> _Table:
        return _Table(self.where, self._of_type(key, dict), f"{self.prefix}{key}.")

    def text(self, key: str) -> str:
        return str(self._of_type(key, str))

    def number(self, key: str) -> Any:
        value = self._of_type(key, int | float)
        if value <= 0:
            raise self.wrong(key, "a number above 0")
        return value

    def only(self, known: tuple[str, ...]) -> None:
        for key in self.values:
            if key not in known:
                raise ConfigError(f"{self.where}: unknown key `{self.prefix}{key}`", hint=f"known: {', '.join(known)}")

    def wrong(self, key: str, expected: str) -> ConfigError:
        return ConfigError(f"{self.where}: `{self.prefix}{key}` is `{self.values[key]}`, expected {expected}")

    def _of_type(self, key: str, kind: Any) -> Any:
        if key not in self.values:
            raise ConfigError(f"{self.where}: `{self.prefix}{key}` is missing")
        value = self.values[key]
        if isinstance(value, bool) or not isinstance(value, kind):
            names = {str: "a text", dict: "a table"}
            raise self.wrong(key, names.get(kind, "a number"))
        return value


def _parse_match(table: _Table) -> Match:
    table.only(("device", "min_capability", "max_capability", "tensor_cores"))
    device = table.text("device")
    if device not in ("cpu", "cuda"):
        raise table.wrong("device", "`cpu` or `cuda`")
    tensor_cores = table.values.get("tensor_cores")
    if tensor_cores not in (None, True, False):
        raise table.wrong("tensor_cores", "true or false")
    return Match(
        device="cpu" if device == "cpu" else "cuda",
        min_capability=_parse_capability(table, "min_capability"),
        max_capability=_parse_capability(table, "max_capability"),
        tensor_cores=tensor_cores,
    )


def _parse_capability(table: _Table, key: str) -> tuple[int, int] | None:
    if key not in table.values:
        return None
    match = re.fullmatch(r"([0-9]+)\.([0-9]+)", table.text(key))
    if match is None:
        raise table.wrong(key, "a compute capability such as `6.1`")
    return int(match.group(1)), int(match.group(2))


def _parse_preferences(table: _Table) -> dict[str, Preference]:
    table.only(CONCERNS)
    return {concern: _parse_preference(table.section(concern)) for concern in CONCERNS}


def _parse_preference(table: _Table) -> Preference:
    table.only(("order", "because"))
    order = table.values.get("order")
    if not isinstance(order, list) or not order or not all(isinstance(value, str) for value in order):
        raise ConfigError(f"{table.where}: `{table.prefix}order` is `{order}`, expected a list of values")
    return Preference(order=tuple(order), because=table.text("because"))


def _parse_limits(table: _Table) -> Limits:
    numbers = tuple(field.name for field in fields(Limits) if field.name != "context_bytes")
    table.only(("context", *numbers))
    return Limits(context_bytes=parse_bytes(table.text("context")), **{name: table.number(name) for name in numbers})
