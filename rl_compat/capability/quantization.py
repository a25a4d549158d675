"""Which quantized forms of frozen weights a machine can multiply with."""

from __future__ import annotations

from rl_compat.capability import bitsandbytes
from rl_compat.capability.choose import capability
from rl_compat.capability.types import Capability
from rl_compat.hardware.types import Hardware

QUANTIZATIONS = ("none", "int8", "nf4")
WEIGHT_BYTES = {"int8": 1 + 1 / 128, "nf4": 0.5 + 1 / 64 + 4 / (64 * 256)}
"""Per weight. int8: 8 bits, and an fp32 scale for every row, of 512 weights or more. nf4: 4 bits, an 8-bit scale for
every 64 and an fp32 scale for every 256 of those (double quantization)."""


def quantization(hardware: Hardware, name: str, *, lora_rank: int) -> Capability:
    """Whether frozen weights can be kept in a quantized form."""
    if name == "none":
        return capability(name)
    trained = () if lora_rank > 0 else ("is for frozen weights under LoRA, and `model.lora_rank=0` trains them all",)
    kernels = bitsandbytes.missing(hardware, feature="nf4") if name == "nf4" else ()
    return capability(name, trained, kernels)
