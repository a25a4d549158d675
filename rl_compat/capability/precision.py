"""Which dtypes a machine can compute in and store weights in.

bf16 arithmetic is native from compute capability 8.0. Below it torch emulates bf16 and fused attention rejects it, even
where `torch.cuda.is_bf16_supported()` returns True. On 6.1, half-precision products run at the speed of fp32 and
half-precision element-wise operations at 1/64 of it. On 7.5 without tensor cores, fp16 products are over 20 times
slower.
"""

from __future__ import annotations

from rl_compat.capability import bitsandbytes
from rl_compat.capability.choice import Capability, capability
from rl_compat.capability.devices import below, describe, has_tensor_cores, on_cpu
from rl_compat.hardware.types import Hardware

DTYPES = ("bf16", "fp16", "fp32")
DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
BF16_MINIMUM = (8, 0)
QUANTIZATIONS = ("none", "int8", "nf4")
WEIGHT_BYTES = {"int8": 1 + 1 / 128, "nf4": 0.5 + 1 / 64 + 4 / (64 * 256)}
"""Bytes per weight. int8: 8 bits, and an fp32 scale for each row of 512 or more weights. nf4: 4 bits, an 8-bit scale
for each 64 weights, and an fp32 scale for each 256 of those scales (double quantization)."""


def compute_dtype(hardware: Hardware, dtype: str) -> Capability:
    """Whether matrix products can run in a dtype."""
    if dtype != "bf16":
        return capability(dtype)
    emulated = tuple(
        f"{describe(device)} only emulates bf16"
        for device in hardware.devices
        if device.bf16_native is False and device.compute_capability >= BF16_MINIMUM
    )
    return capability(dtype, below(hardware, BF16_MINIMUM), emulated)


def storage_dtype(hardware: Hardware, dtype: str) -> Capability:
    """Whether weights can be stored in a dtype: fp16 and fp32 always, bf16 where it can be computed in."""
    return compute_dtype(hardware, dtype)


def unwise_compute_dtype(hardware: Hardware, dtype: str) -> tuple[str, ...]:
    """Why a dtype that works is not a good default."""
    if dtype == "fp32":
        return ()
    if on_cpu(hardware):
        return (f"{dtype} is not faster than fp32 on every CPU, and it is less exact",)
    if dtype == "bf16":
        return ()
    return tuple(
        f"fp16 arithmetic is no faster than fp32 on {describe(device)}, which has no tensor cores"
        for device in hardware.devices
        if not has_tensor_cores(device)
    )


def loss_scaling(dtype: str) -> Capability:
    """Whether the loss must be scaled: only the range of fp16 is too small for gradients."""
    return capability("loss scaling", () if dtype == "fp16" else (f"{dtype} has the range of fp32",))


def quantization(hardware: Hardware, name: str, *, lora_rank: int) -> Capability:
    """Whether frozen weights can be stored in a quantized form."""
    if name == "none":
        return capability(name)
    trained = () if lora_rank > 0 else ("quantizes frozen weights, and `model.lora_rank=0` trains all weights",)
    kernels = bitsandbytes.missing(hardware, feature="nf4") if name == "nf4" else ()
    return capability(name, trained, kernels)
