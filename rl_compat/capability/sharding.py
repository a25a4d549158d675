"""What cannot be divided among devices that share one copy of a model."""

from __future__ import annotations


def against_sharding(*, optimizer: str, quantization: str) -> tuple[str, ...]:
    """Every reason against weights that several devices share, of a role with this optimizer and quantization."""
    reasons = []
    if optimizer == "adamw8bit":
        reasons.append("`adamw8bit` scales its states in blocks that cross the parts of the devices")
    if quantization != "none":
        reasons.append(f"`{quantization}` keeps the scales of its blocks or rows apart from the weights")
    return tuple(reasons)
