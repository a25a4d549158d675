"""Which engines can generate on a machine.

vLLM has no code below 7.0 in any official wheel, and none below 7.5 since 0.20: the floors by release come from the
table in the doctor's knowledge.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from rl_compat.capability.choose import capability
from rl_compat.capability.devices import below, on_cpu
from rl_compat.capability.types import Capability
from rl_compat.hardware.binaries import parse_version
from rl_compat.hardware.types import Hardware

ENGINES = ("native", "vllm", "transformers")
VLLM_FLOOR = (7, 0)


def rollout_engine(hardware: Hardware, name: str, *, compute_dtype: str) -> Capability:
    """Whether an engine generates here in a compute dtype."""
    if name != "vllm":
        return capability(name)
    version = hardware.software.packages.get("vllm")
    if version is None:
        return capability(name, ("needs the package `vllm`, which is not installed",), below(hardware, VLLM_FLOOR))
    if on_cpu(hardware):
        return capability(name, () if "cpu" in version else (f"vllm {version} is a GPU build",))
    return capability(name, below(hardware, max(VLLM_FLOOR, vllm_minimum(version))))


def vllm_minimum(version: str) -> tuple[int, int]:
    """Lowest compute capability with code in a vLLM wheel; that of the nearest older release in the table."""
    floor = VLLM_FLOOR
    for release, minimum in _vllm_floors():
        if release <= parse_version(version):
            floor = minimum
    return floor


@cache
def _vllm_floors() -> tuple[tuple[tuple[int, ...], tuple[int, int]], ...]:
    table = json.loads(files("rl_compat.doctor").joinpath("knowledge/vllm.json").read_text())
    rows = []
    for row in table["releases"]:
        major, minor = parse_version(row["wheel_min_cc"])[:2]
        rows.append((parse_version(row["vllm"]), (major, minor)))
    return tuple(sorted(rows))
