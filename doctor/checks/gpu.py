"""Checks of gpu."""

from __future__ import annotations

from rl_compat.doctor.types import Check

CHECKS: tuple[Check, ...] = ()
