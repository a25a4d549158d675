"""Which optimizers run on a machine, which frozen weights it quantizes, and the host memory for offload."""

from __future__ import annotations

from rl_compat.capability import bitsandbytes
from rl_compat.hardware.types import Hardware

OPTIMIZERS = ("adamw", "adamw8bit")
STATE_BYTES = {"adamw": 8, "adamw8bit": 2}
"per trained parameter: two moments in fp32, or in 8 bits"
QUANTIZATIONS = ("none", "int8", "nf4")
WEIGHT_BYTES = {"int8": 1 + 1 / 128, "nf4": 0.5 + 1 / 64 + 4 / (64 * 256)}
"""Bytes per weight. int8: 8 bits, and an fp32 scale for each row of 512 or more weights. nf4: 4 bits, an 8-bit scale
for each 64 weights, and an fp32 scale for each 256 of those scales (double quantization)."""


def against_optimizer(hardware: Hardware, name: str, *, offloaded: bool = False) -> tuple[str, ...]:
    """Every reason against an optimizer with its states on the device, or `offloaded` to the host."""
    if name == "adamw":
        return ()
    apart = ("keeps its states on the GPU, and `plan.offload_optimizer=true` keeps them on the host",)
    return (apart if offloaded else ()) + bitsandbytes.missing(hardware, feature="optimizer_8bit")


def against_quantization(hardware: Hardware, name: str, *, lora_rank: int) -> tuple[str, ...]:
    """Every reason against storing frozen weights in a quantized form."""
    if name == "none":
        return ()
    trained = () if lora_rank > 0 else ("quantizes frozen weights, and `model.lora_rank=0` trains all weights",)
    return trained + (bitsandbytes.missing(hardware, feature="nf4") if name == "nf4" else ())


def host_budget_bytes(hardware: Hardware, *, fraction: float) -> int:
    """Host memory that a plan may use: available memory, within the limit of the process."""
    host = hardware.host
    return int(min(host.ram_available_bytes, host.ram_limit_bytes, host.ram_total_bytes) * fraction)
