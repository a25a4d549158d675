"""Checks of the installed packages around torch, one subject a file."""

from __future__ import annotations

from rl_compat.doctor.checks import (
    attention_packages,
    bitsandbytes,
    cuda_libraries,
    required_packages,
    transformers,
)
from rl_compat.doctor.findings import Check

CHECKS: tuple[Check, ...] = (
    required_packages.CHECK,
    transformers.CHECK,
    bitsandbytes.CHECK,
    attention_packages.CHECK,
    cuda_libraries.CHECK,
)
