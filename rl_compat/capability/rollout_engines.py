"""Which engines can generate on a machine.

vLLM has no code below 7.0 in any official wheel, and none below 7.5 since 0.20: the floors by release come from the
table in the doctor's knowledge.
"""

from __future__ import annotations

from functools import cache

from rl_compat.capability.choose import capability
from rl_compat.capability.devices import below
from rl_compat.capability.types import Capability
from rl_compat.hardware.binaries import parse_version
from rl_compat.hardware.catalogue import read_table
from rl_compat.hardware.types import Hardware

ENGINES = ("native", "vllm", "transformers")
BUILT = ("native", "transformers")
"those that this version of the program can drive"
VLLM_FLOOR = (7, 0)


def rollout_engine(hardware: Hardware, name: str) -> Capability:
    """Whether an engine generates here."""
    if name != "vllm":
        return capability(name)
    unbuilt = () if name in BUILT else (f"is not driven by this version, which has {' and '.join(BUILT)}",)
    version = hardware.software.packages.get("vllm")
    if version is None:
        missing = ("needs the package `vllm`, which is not installed",)
        return capability(name, below(hardware, VLLM_FLOOR), missing, unbuilt)
    return capability(name, below(hardware, vllm_minimum(version)), unbuilt)


def vllm_minimum(version: str) -> tuple[int, int]:
    """Lowest compute capability with code in a vLLM wheel; that of the nearest older release in the table."""
    floor = VLLM_FLOOR
    for release, minimum in _vllm_floors():
        if release <= parse_version(version):
            floor = minimum
    return floor


@cache
def _vllm_floors() -> tuple[tuple[tuple[int, ...], tuple[int, int]], ...]:
    table = read_table("vllm")
    rows = []
    for row in table["releases"]:
        major, minor = parse_version(row["wheel_min_cc"])[:2]
        rows.append((parse_version(row["vllm"]), (major, minor)))
    return tuple(sorted(rows))
