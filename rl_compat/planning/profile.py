"""Profiles: the preferences and size limits of a family of cards, read from TOML, and which one a machine uses."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from rl_compat.capability.devices import has_tensor_cores
from rl_compat.errors import ConfigError, HardwareError, did_you_mean
from rl_compat.hardware.gpu.catalogue import capability_of
from rl_compat.hardware.types import Device, Hardware
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
    """A profile from its TOML, on top of the one that it is `like`.

    Raises ConfigError, naming the file and the key or value that is wrong.
    """
    try:
        table = _read(text)
        match, limits = table.pop("match"), table.pop("limits")
        match |= {key: capability_of(match[key]) for key in ("min_capability", "max_capability") if key in match}
        prefer = {
            concern: Preference(**values | {"order": tuple(values["order"])})
            for concern, values in table.pop("prefer").items()
        }
        limits["context_bytes"] = parse_bytes(limits.pop("context"))
        profile = Profile(name=name, match=Match(**match), prefer=prefer, limits=Limits(**limits), **table)
        _check(profile)
    except KeyError as error:
        raise ConfigError(f"profile `{name}.toml`: `{error.args[0]}` is missing") from error
    except (TypeError, ValueError, OSError, ConfigError) as error:
        raise ConfigError(f"profile `{name}.toml`: {error}") from error
    return profile


def _read(text: str) -> dict[str, Any]:
    own = tomllib.loads(text)
    like = own.pop("like", None)
    return (
        own if like is None else _merged(_read(files("rl_compat.profiles").joinpath(f"{like}.toml").read_text()), own)
    )


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The tables of both, where `own` has precedence entry by entry."""
    nested = {key: _merged(base[key], own[key]) for key in base.keys() & own.keys() if isinstance(base[key], dict)}
    return base | own | nested


def _check(profile: Profile) -> None:
    """Raise ValueError for a value that no profile can have."""
    if profile.match.device not in ("cpu", "cuda"):
        raise ValueError(f"`match.device` is `{profile.match.device}`, expected `cpu` or `cuda`")
    if set(profile.prefer) != set(CONCERNS) or not all(preference.order for preference in profile.prefer.values()):
        raise ValueError(f"`prefer` needs an order for each of {', '.join(CONCERNS)}, and has {profile.prefer}")
    if not all(isinstance(limit, int | float) and limit > 0 for limit in astuple(profile.limits)):
        raise ValueError(f"`limits` are numbers above 0, not {profile.limits}")


@cache
def load_profiles() -> tuple[Profile, ...]:
    """All profiles by compute capability, the CPU first. Raises ConfigError for a malformed file."""
    found = [item for item in files("rl_compat.profiles").iterdir() if item.name.endswith(".toml")]
    profiles = [parse_profile(item.name.removesuffix(".toml"), item.read_text()) for item in found]
    return tuple(sorted(profiles, key=lambda profile: (profile.match.min_capability or (0, 0), profile.name)))


def find_profile(name: str) -> Profile:
    """The profile with this name. Raises ConfigError, suggesting the nearest one."""
    profiles = {profile.name: profile for profile in load_profiles()}
    if name in profiles:
        return profiles[name]
    hint = did_you_mean(name, profiles, f"the profiles are {', '.join(profiles)}")
    raise ConfigError(f"there is no profile `{name}`", hint=hint)


def match_profile(hardware: Hardware, asked: str = "auto") -> tuple[Profile, str]:
    """The profile of the selected devices, and why.

    The weakest device decides. A card newer than every profile uses the newest. Raises HardwareError if the devices do
    not meet the conditions of the profile `asked`, or the card is older than every profile.
    """
    weakest = min(hardware.devices, key=lambda device: device.compute_capability, default=None)
    if asked != "auto":
        profile = find_profile(asked)
        broken = conditions_broken(profile.match, weakest)
        if broken:
            raise HardwareError(f"profile `{asked}` {broken}", hint="set `plan.profile=auto`")
        return profile, f"set by `plan.profile`; {profile.summary}"
    for profile in load_profiles():
        if not conditions_broken(profile.match, weakest):
            return profile, profile.summary
    assert weakest is not None
    return _outside(weakest)


def conditions_broken(match: Match, device: Device | None) -> str:
    """Why a profile does not apply to the device (None for the CPU), or an empty string."""
    if device is None:
        return "" if match.device == "cpu" else "is for a CUDA device, and the device is the CPU"
    if match.device == "cpu":
        return f"is for the CPU, and the device is {device.name}"
    capability = device.compute_capability
    lowest, highest = match.min_capability, match.max_capability
    if (lowest and capability < lowest) or (highest and capability > highest):
        span = f"{_dotted(lowest)} to {_dotted(highest)}"
        return f"is for compute capability {span}, and {device.name} has {_dotted(capability)}"
    if match.tensor_cores is not None and match.tensor_cores != has_tensor_cores(device):
        needs, has = ("with", "has none") if match.tensor_cores else ("without", "has them")
        return f"is for cards {needs} tensor cores, and {device.name} {has}"
    return ""


def _outside(device: Device) -> tuple[Profile, str]:
    cuda = [profile for profile in load_profiles() if profile.match.device == "cuda"]
    at_most = [p for p in cuda if (p.match.min_capability or (0, 0)) <= device.compute_capability]
    if not at_most:
        oldest = cuda[0].match.min_capability
        raise HardwareError(
            f"{device.name} has compute capability {_dotted(device.compute_capability)}, and the oldest supported is "
            f"{_dotted(oldest)}",
            hint="set `plan.device=cpu`",
        )
    profile = at_most[-1]
    unknown = f"no profile covers compute capability {_dotted(device.compute_capability)}"
    return profile, f"{unknown}; `{profile.name}` is the nearest older one"


def _dotted(capability: tuple[int, int] | None) -> str:
    return "any" if capability is None else f"{capability[0]}.{capability[1]}"
