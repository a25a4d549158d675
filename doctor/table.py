"""Every check of the doctor, in the order in which it asks: the quick ones first, those that need the network last."""

from __future__ import annotations

from rl_compat.doctor.checks import (
    compute,
    driver,
    gpu,
    host,
    libraries,
    memory,
    network,
    packages,
    python,
    rollout_engines,
    several,
    storage,
    terminal,
    torch_build,
)
from rl_compat.doctor.findings import Check

CHECKS: tuple[Check, ...] = (
    *gpu.CHECKS,
    *driver.CHECKS,
    *python.CHECKS,
    *memory.CHECKS,
    *several.CHECKS,
    *host.CHECKS,
    *storage.CHECKS,
    *terminal.CHECKS,
    *torch_build.CHECKS,
    *libraries.CHECKS,
    *compute.CHECKS,
    *packages.CHECKS,
    *rollout_engines.CHECKS,
    *network.CHECKS,
)
