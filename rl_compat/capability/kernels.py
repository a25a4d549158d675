"""Which ways of launching and fusing kernels a machine supports.

`torch.compile` and the Triton kernels of torch need compute capability 7.0. CUDA graphs replay recorded launches on any
card. TF32 products exist from 8.0. Each function returns every reason against; empty if it works.
"""

from __future__ import annotations

from rl_compat.capability.devices import NEEDS_CUDA, below, on_cpu
from rl_compat.hardware.types import Hardware

TRITON_MINIMUM = (7, 0)
TF32_MINIMUM = (8, 0)


def against_triton(hardware: Hardware) -> tuple[str, ...]:
    return NEEDS_CUDA if on_cpu(hardware) else below(hardware, TRITON_MINIMUM)


def against_compile(hardware: Hardware) -> tuple[str, ...]:
    """Of `torch.compile`."""
    if on_cpu(hardware):
        return ("needs a C++ compiler on a CPU, and is not used there",)
    return below(hardware, TRITON_MINIMUM)


def against_graphs(hardware: Hardware, *, engine: str) -> tuple[str, ...]:
    """Of replaying the rollout engine's decode step as a CUDA graph."""
    if on_cpu(hardware):
        return NEEDS_CUDA
    return () if engine in ("native", "vllm") else (f"the engine `{engine}` does not capture graphs",)


def against_tf32(hardware: Hardware, *, compute_dtype: str) -> tuple[str, ...]:
    """Of TF32 for the fp32 products in half-precision training."""
    if on_cpu(hardware):
        return NEEDS_CUDA
    exact = ("the compute dtype is fp32, for exact products",) if compute_dtype == "fp32" else ()
    return below(hardware, TF32_MINIMUM) + exact
