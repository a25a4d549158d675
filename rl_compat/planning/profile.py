"""Profiles: what a family of cards prefers and how far it is worth going, read from TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from rl_compat.capability.devices import has_tensor_cores
from rl_compat.errors import ConfigError, HardwareError, nearest
from rl_compat.hardware.types import Device, Hardware
from rl_compat.units import parse_bytes

CONCERNS = ("compute_dtype", "rollout_dtype", "frozen_storage_dtype", "attention", "rollout_engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Hard conditions: a profile is never used on a device that breaks one."""

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
    """How far sizes are worth raising, and what memory costs beside the tensors."""

    context_bytes: int
    "of the CUDA context and libraries, or of the interpreter with its libraries on a CPU"
    allocator_factor: float
    "memory reserved by the allocator over memory asked of it"
    max_num_seqs: int
    max_micro_batch_size: int
    max_tokens_per_micro_batch: int
    enough_tokens_per_micro_batch: int
    "from here on a larger micro-batch gains too little to pay for it with gradient checkpointing"
    max_prefill_tokens: int
    max_logprob_chunk_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    name: str
    summary: str
    match: Match
    prefer: Mapping[str, Preference]
    limits: Limits


@cache
def load_profiles() -> tuple[Profile, ...]:
    """All profiles, in order of compute capability with the CPU first. Raises ConfigError for a malformed file."""
    found = [item for item in files("rl_compat.profiles").iterdir() if item.name.endswith(".toml")]
    profiles = [parse_profile(item.name.removesuffix(".toml"), item.read_text()) for item in found]
    return tuple(sorted(profiles, key=lambda profile: (profile.match.min_capability or (0, 0), profile.name)))


def find_profile(name: str) -> Profile:
    """The profile of that name. Raises ConfigError with the nearest one."""
    profiles = {profile.name: profile for profile in load_profiles()}
    if name in profiles:
        return profiles[name]
    close = nearest(name, profiles)
    raise ConfigError(
        f"there is no profile `{name}`",
        hint=f"did you mean `{close}`" if close else f"the profiles are {', '.join(profiles)}",
    )


def match_profile(hardware: Hardware, asked: str = "auto") -> tuple[Profile, str]:
    """The profile of the selected devices and a sentence that says why.

    The weakest device decides. A card newer than every profile takes the newest. Raises HardwareError when the asked
    profile's conditions are not met or the card is older than every profile.
    """
    weakest = min(hardware.devices, key=lambda device: device.compute_capability, default=None)
    if asked != "auto":
        profile = find_profile(asked)
        broken = conditions_broken(profile.match, weakest)
        if broken:
            raise HardwareError(f"profile `{asked}` {broken}", hint="set `plan.profile=auto`")
        return profile, f"asked for; {profile.summary}"
    for profile in load_profiles():
        if not conditions_broken(profile.match, weakest):
            return profile, profile.summary
    assert weakest is not None
    return _outside(weakest)


def conditions_broken(match: Match, device: Device | None) -> str:
    """Why a profile does not apply to the device (None for the CPU), or an empty text."""
    if device is None:
        return "" if match.device == "cpu" else "is for a CUDA device and the device is the CPU"
    if match.device == "cpu":
        return f"is for the CPU and the device is {device.name}"
    capability = device.compute_capability
    lowest, highest = match.min_capability, match.max_capability
    if (lowest and capability < lowest) or (highest and capability > highest):
        span = f"{_dotted(lowest)} to {_dotted(highest)}"
        return f"is for compute capability {span} and {device.name} has {_dotted(capability)}"
    if match.tensor_cores is not None and match.tensor_cores != has_tensor_cores(device):
        has, needs = ("no", "with") if match.tensor_cores else ("", "without")
        return f"is for cards {needs} tensor cores and {device.name} has {has or 'them'}".rstrip()
    return ""


def _outside(device: Device) -> tuple[Profile, str]:
    cuda = [profile for profile in load_profiles() if profile.match.device == "cuda"]
    at_most = [p for p in cuda if (p.match.min_capability or (0, 0)) <= device.compute_capability]
    if not at_most:
        oldest = cuda[0].match.min_capability
        raise HardwareError(
            f"{device.name} has compute capability {_dotted(device.compute_capability)} and the oldest that works is "
            f"{_dotted(oldest)}",
            hint="set `plan.device=cpu`",
        )
    profile = at_most[-1]
    unknown = f"no profile names compute capability {_dotted(device.compute_capability)}"
    return profile, f"{unknown}; `{profile.name}` is the nearest older"


def parse_profile(name: str, text: str) -> Profile:
    """A profile from its TOML. Raises ConfigError naming the file and the key."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"profile `{name}.toml`: {error}") from error
    _only_keys(name, table, ("summary", "match", "prefer", "limits"))
    return Profile(
        name=name,
        summary=str(table["summary"]),
        match=_parse_match(name, table["match"]),
        prefer=_parse_preferences(name, table["prefer"]),
        limits=_parse_limits(name, table["limits"]),
    )


def _parse_match(name: str, table: dict[str, Any]) -> Match:
    allowed = ("device", "min_capability", "max_capability", "tensor_cores")
    _only_keys(name, table, allowed, needed=("device",))
    if table["device"] not in ("cpu", "cuda"):
        raise ConfigError(f"profile `{name}.toml`: `match.device` is `{table['device']}`, expected `cpu` or `cuda`")
    tensor_cores = table.get("tensor_cores")
    return Match(
        device=table["device"],
        min_capability=_parse_capability(table.get("min_capability")),
        max_capability=_parse_capability(table.get("max_capability")),
        tensor_cores=tensor_cores,
    )


def _parse_capability(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    major, minor = text.split(".")
    return int(major), int(minor)


def _parse_preferences(name: str, table: dict[str, Any]) -> dict[str, Preference]:
    _only_keys(name, table, CONCERNS)
    return {key: Preference(order=tuple(row["order"]), because=row["because"]) for key, row in table.items()}


def _parse_limits(name: str, table: dict[str, Any]) -> Limits:
    names = tuple(field.name for field in fields(Limits) if field.name != "context_bytes")
    _only_keys(name, table, ("context", *names))
    numbers = {key: table[key] for key in names}
    return Limits(context_bytes=parse_bytes(table["context"]), **numbers)


def _only_keys(name: str, table: dict[str, Any], known: tuple[str, ...], needed: tuple[str, ...] | None = None) -> None:
    for key in table:
        if key not in known:
            raise ConfigError(f"profile `{name}.toml`: unknown key `{key}`", hint=f"the keys are {', '.join(known)}")
    for key in known if needed is None else needed:
        if key not in table:
            raise ConfigError(f"profile `{name}.toml`: `{key}` is missing")


def _dotted(capability: tuple[int, int] | None) -> str:
    return "any" if capability is None else f"{capability[0]}.{capability[1]}"
