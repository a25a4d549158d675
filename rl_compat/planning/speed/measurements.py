"""Measured speeds of rollout engines: a shipped table, and a file of this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from rl_compat.hardware.system.folders import folder_places

SHIPPED = "measured_speeds.json"
OWN_FILE = "measured_rollout.json"
SHORTEST_RESPONSE = 16
"new tokens; shorter responses measure the prefill rather than decoding"
COMMON = (
    "measured_by",
    "card",
    "compute_capability",
    "torch",
    "vllm",
    "model",
    "num_parameters",
    "prompt_tokens",
    "new_tokens",
)
"fields that the speeds of one entry in a file share"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The speed of one engine, and the conditions of the measurement."""

    measured_by: str
    card: str
    "the driver's name of the card, or the name of the CPU"
    compute_capability: str | None
    "such as `9.0`; None for a CPU"
    torch: str
    vllm: str | None
    model: str
    num_parameters: int
    prompt_tokens: int
    "of a prompt, mean"
    new_tokens: int
    "of a response, maximum"
    engine: str
    dtype: str
    batch: int
    "concurrent sequences"
    tokens_per_second: float

    @property
    def conditions(self) -> tuple[object, ...]:
        """Only measurements under equal conditions are comparable."""
        return (self.card, self.num_parameters, self.dtype, self.batch, self.prompt_tokens, self.new_tokens)


@cache
def shipped_measurements() -> tuple[Measurement, ...]:
    """The measurements shipped with the package."""
    return _parsed(json.loads(files("rl_compat.planning.speed").joinpath(SHIPPED).read_text(encoding="utf-8")))


def own_measurements(path: Path | None = None) -> tuple[Measurement, ...]:
    """The measurements that `rlc bench rollout` saved on this machine; empty if the file is missing or malformed."""
    try:
        return _parsed(json.loads((path or own_file()).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        return ()


def own_file(environment: Mapping[str, str] | None = None) -> Path:
    """The file of this machine, in the cache folder (`RLC_CACHE`)."""
    return folder_places(os.environ if environment is None else environment)["model_cache"] / OWN_FILE


def save_measurements(new: Iterable[Measurement], path: Path | None = None) -> Path:
    """Add measurements to this machine's file, replacing older ones under the same conditions. Raises OSError.

    The file is replaced atomically.
    """
    target = path or own_file()
    kept = {(item.engine, item.conditions): item for item in (*own_measurements(target), *new)}
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(json.dumps(_entries(kept.values()), indent=1, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _parsed(entries: list[dict[str, Any]]) -> tuple[Measurement, ...]:
    return tuple(
        _checked(Measurement(**{name: entry[name] for name in COMMON}, **speed))
        for entry in entries
        for speed in entry["speeds"]
    )


def _checked(item: Measurement) -> Measurement:
    """The measurement. Raises ValueError if a number is not positive."""
    numbers = (item.num_parameters, item.batch, item.tokens_per_second)
    if not all(isinstance(number, int | float) and number > 0 for number in numbers):
        raise ValueError(f"a measurement has a number that is not above 0: {numbers}")
    return item


def _entries(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Grouped by their shared fields, in order."""
    entries: dict[tuple[Any, ...], dict[str, Any]] = {}
    own = [field.name for field in fields(Measurement) if field.name not in COMMON]
    for item in measurements:
        values = asdict(item)
        common = {name: values[name] for name in COMMON}
        entry = entries.setdefault(tuple(common.values()), common | {"speeds": []})
        entry["speeds"].append({name: values[name] for name in own})
    return list(entries.values())
