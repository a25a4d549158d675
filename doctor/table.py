"""Every check of the doctor in the order in which they run: quick ones first, those that need the network last."""

from __future__ import annotations

from rl_compat.doctor.checks.cards import gpu, memory, precision, several
from rl_compat.doctor.checks.driver import driver
from rl_compat.doctor.checks.packages import bitsandbytes, engines, kernels, required, transformers
from rl_compat.doctor.checks.system import container, host, network, python, storage, variables
from rl_compat.doctor.checks.torch import build, libraries
from rl_compat.doctor.findings import Check

CHECKS: tuple[Check, ...] = (
    *gpu.CHECKS,
    *driver.CHECKS,
    *python.CHECKS,
    *memory.CHECKS,
    *several.CHECKS,
    container.SHARED_MEMORY,
    *host.CHECKS,
    *container.CHECKS,
    *storage.CHECKS,
    host.TERMINAL,
    *build.CHECKS,
    *libraries.CHECKS,
    *precision.CHECKS,
    variables.CHECK,
    required.CHECK,
    transformers.CHECK,
    bitsandbytes.CHECK,
    kernels.CHECK,
    libraries.CUDA_LIBRARIES,
    *engines.CHECKS,
    *network.CHECKS,
)
