"""Questions to the tables of vLLM: the row of a version, and the releases that a machine supports."""

from __future__ import annotations

from collections.abc import Sequence

from rl_compat.capability.binaries import parse_version
from rl_compat.doctor.tables.rows import Capability, Row, satisfies, serves
from rl_compat.doctor.tables.target import known_driver, target_of
from rl_compat.doctor.tables.torch import BEYOND, OLDEST, driver_runs
from rl_compat.hardware.gpu.catalogue import capability_of, read_table
from rl_compat.hardware.types import Hardware


def vllm_has_code(row: Row, capability: Capability) -> bool:
    return serves(row["wheel_sm"], capability)


def vllm_releases(hardware: Hardware) -> tuple[Row, ...]:
    """The releases that support every card, the driver, the Python and this project's packages, newest first."""
    rows = sorted(read_table("vllm")["releases"], key=lambda row: parse_version(row["vllm"]), reverse=True)
    return tuple(row for row in rows if _fits(hardware, row))


def _fits(hardware: Hardware, row: Row) -> bool:
    if not matches_project(row) or not all(
        vllm_has_code(row, device.compute_capability) for device in hardware.devices
    ):
        return False
    driver = known_driver(hardware)
    return satisfies(target_of(hardware).python, row["python"]) and (
        driver is None or any(driver_runs(driver, cuda) for cuda in row["wheel_cuda"])
    )


def matches_project(row: Row) -> bool:
    """Whether a release can share an environment with this project, by its torch and transformers."""
    pinned = parse_version(str(row["torch"]).lstrip("=>"))[:2]
    return OLDEST <= pinned < BEYOND and bool(row["transformers_5"])


def last_vllm_with_code(capabilities: Sequence[Capability]) -> Row | None:
    """The newest release with code for all those cards, whatever else it requires."""
    rows = [row for row in read_table("vllm")["releases"] if all(vllm_has_code(row, card) for card in capabilities)]
    return max(rows, key=lambda row: parse_version(row["vllm"]), default=None)


def forks_for(capability: Capability) -> tuple[str, ...]:
    """Repositories of forks with code for a card that no official wheel supports."""
    return tuple(
        str(row["repo"])
        for row in read_table("vllm")["forks"]
        if row["usable"] and capability_of(row["cc_min"]) <= capability <= capability_of(row["cc_max"])
    )


def attention_backends(row: Row, capability: Capability) -> tuple[str, ...]:
    """The attention backends of a release of vLLM on a card."""
    release = parse_version(row["vllm"])
    return tuple(
        str(backend["backend"])
        for backend in read_table("vllm")["attention"]
        if (backend["cc_min"] is None or capability >= capability_of(backend["cc_min"]))
        and (backend["vllm_max"] is None or release <= parse_version(backend["vllm_max"]))
        and (capability >= (8, 0) or backend["backend"] in row["attention_below_8_0"])
    )
