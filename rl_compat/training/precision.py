"""The compute dtypes of a role."""

from __future__ import annotations

import torch

from rl_compat.models.files.storage import rounds_logits
from rl_compat.models.load import TORCH_DTYPES
from rl_compat.planning.types import RolePlan


def autocast_for(role: RolePlan) -> torch.autocast:
    """Autocast to the role's compute dtype on its device; disabled for fp32."""
    device_type = torch.device(role.device).type
    if role.compute_dtype == "fp32":
        return torch.autocast(device_type, enabled=False)
    return torch.autocast(device_type, dtype=TORCH_DTYPES[role.compute_dtype])


def multiply_dtype(hidden: torch.Tensor) -> torch.dtype:
    """The dtype of the output layer's product: that of autocast or of `hidden`, but never bf16, which is too coarse."""
    device_type = hidden.device.type
    if rounds_logits(device_type):
        return torch.float32
    if torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return hidden.dtype
