"""Which number formats a machine multiplies in and keeps weights in.

bf16 arithmetic is native from compute capability 8.0; below, torch emulates it and fused attention refuses it, whatever
`torch.cuda.is_bf16_supported()` answers. On 6.1 half products run at the speed of fp32 and half element-wise arithmetic
at 1/64 of it. Cards of 7.5 without tensor cores lose a factor of more than twenty in fp16 products.
"""

from __future__ import annotations

from rl_compat.capability.choose import capability
from rl_compat.capability.devices import below, describe, has_tensor_cores, on_cpu
from rl_compat.capability.types import Capability
from rl_compat.hardware.types import Hardware

DTYPES = ("bf16", "fp16", "fp32")
DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
BF16_MINIMUM = (8, 0)


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
    """Whether weights can be kept in a dtype: fp16 and fp32 anywhere, bf16 where it can be multiplied."""
    return compute_dtype(hardware, dtype)


def unwise_compute_dtype(hardware: Hardware, dtype: str) -> tuple[str, ...]:
    """Why a dtype that works is not a good default."""
    if dtype == "fp32":
        return ()
    if on_cpu(hardware):
        return (f"{dtype} is not faster than fp32 on every CPU, and less exact",)
    if dtype == "bf16":
        return ()
    return tuple(
        f"fp16 arithmetic is no faster than fp32 on {describe(device)}, which has no tensor cores"
        for device in hardware.devices
        if not has_tensor_cores(device)
    )


def loss_scaling(dtype: str) -> Capability:
    """Whether the loss has to be scaled: only fp16 has too short a range for gradients."""
    return capability("loss scaling", () if dtype == "fp16" else (f"{dtype} has the range of fp32",))
