"""Which dtypes a machine can compute in and store weights in.

bf16 arithmetic is native from compute capability 8.0. Below it torch emulates bf16 and fused attention rejects it, even
where `torch.cuda.is_bf16_supported()` returns True. On 6.1, half-precision products run at the speed of fp32 and
half-precision element-wise operations at 1/64 of it. On 7.5 without tensor cores, fp16 products are over 20 times
slower.
"""

from __future__ import annotations

from rl_compat.capability.devices import below, describe, has_tensor_cores, on_cpu
from rl_compat.hardware.types import Hardware

DTYPES = ("bf16", "fp16", "fp32")
DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
BF16_MINIMUM = (8, 0)


def against_dtype(hardware: Hardware, dtype: str) -> tuple[str, ...]:
    """Every reason against a dtype for matrix products or stored weights: fp16 and fp32 always work."""
    if dtype != "bf16":
        return ()
    emulated = tuple(
        f"{describe(device)} only emulates bf16"
        for device in hardware.devices
        if device.bf16_native is False and device.compute_capability >= BF16_MINIMUM
    )
    return below(hardware, BF16_MINIMUM) + emulated


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
