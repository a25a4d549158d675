"""Which ways of launching and fusing kernels a machine supports.

`torch.compile` and the Triton kernels of torch need compute capability 7.0. CUDA graphs replay recorded launches on any
card. TF32 products exist from 8.0.
"""

from __future__ import annotations

from rl_compat.capability.choice import Capability, capability
from rl_compat.capability.devices import below, on_cpu
from rl_compat.hardware.types import Hardware

TRITON_MINIMUM = (7, 0)
TF32_MINIMUM = (8, 0)
_NEEDS_CUDA = ("needs a CUDA device",)


def triton(hardware: Hardware) -> Capability:
    """Whether Triton kernels run."""
    if on_cpu(hardware):
        return capability("triton", _NEEDS_CUDA)
    return capability("triton", below(hardware, TRITON_MINIMUM))


def torch_compile(hardware: Hardware) -> Capability:
    """Whether `torch.compile` supports the devices."""
    if on_cpu(hardware):
        return capability("torch_compile", ("needs a C++ compiler on a CPU, and is not used there",))
    return capability("torch_compile", below(hardware, TRITON_MINIMUM))


def cuda_graphs(hardware: Hardware, *, engine: str) -> Capability:
    """Whether the rollout engine replays its decode step as a CUDA graph."""
    if on_cpu(hardware):
        return capability("cuda_graphs", _NEEDS_CUDA)
    records = engine in ("native", "vllm")
    return capability("cuda_graphs", () if records else (f"the engine `{engine}` does not capture graphs",))


def tf32(hardware: Hardware, *, compute_dtype: str) -> Capability:
    """Whether the fp32 products in half-precision training may run in TF32."""
    if on_cpu(hardware):
        return capability("tf32", _NEEDS_CUDA)
    exact = ("the compute dtype is fp32, for exact products",) if compute_dtype == "fp32" else ()
    return capability("tf32", below(hardware, TF32_MINIMUM), exact)
