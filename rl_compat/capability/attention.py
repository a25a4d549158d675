"""Which attention implementations and kernels a machine supports.

Gates of `scaled_dot_product_attention`: flash and cuDNN from 8.0 in half precision; memory-efficient from 5.0 in fp32
and fp16, from 8.0 in bf16 too; math anywhere, with a score matrix that grows with the square of the length. Before
torch 2.14 the memory-efficient kernel rejects grouped keys, and a grouped call without flash falls back to math.

cuDNN is not used: it builds a plan for every new shape, and shapes change with every batch.
"""

from __future__ import annotations

from rl_compat.capability.binaries import parse_version
from rl_compat.capability.devices import NEEDS_CUDA, against_package, below, on_cpu, torch_version
from rl_compat.hardware.types import Hardware

ATTENTIONS = ("flash_attention_2", "sdpa", "eager")
FLASH_MINIMUM = (8, 0)
EFFICIENT_MINIMUM = (5, 0)
GROUPED_EFFICIENT_TORCH = (2, 14)
USED_BACKENDS = ("flash", "efficient", "math")


def against_attention(hardware: Hardware, name: str, *, compute_dtype: str) -> tuple[str, ...]:
    """Every reason against an attention implementation in a compute dtype; empty if it runs."""
    if name != "flash_attention_2":
        return ()
    if on_cpu(hardware):
        return NEEDS_CUDA
    return (
        *below(hardware, FLASH_MINIMUM),
        *against_package(hardware, "flash-attn"),
        *((f"computes in half precision only, not in {compute_dtype}",) if compute_dtype == "fp32" else ()),
    )


def sdpa_backends(hardware: Hardware) -> tuple[str, ...]:
    """The kernels of scaled_dot_product_attention that all devices support and that suit changing shapes."""
    weakest = hardware.weakest_capability()
    if weakest is None or weakest >= FLASH_MINIMUM:
        return USED_BACKENDS
    return ("efficient", "math") if weakest >= EFFICIENT_MINIMUM else ("math",)


def against_repeated_keys(hardware: Hardware, *, compute_dtype: str) -> tuple[str, ...]:
    """Why grouped keys and values need no repeating before scaled_dot_product_attention; empty if they must be."""
    weakest = hardware.weakest_capability()
    if weakest is None:
        return ("the CPU kernels accept grouped keys",)
    if parse_version(torch_version(hardware) or "") >= GROUPED_EFFICIENT_TORCH:
        return ("the memory-efficient kernel accepts grouped keys from torch 2.14",)
    if weakest >= FLASH_MINIMUM and compute_dtype != "fp32":
        return ("the flash kernel accepts grouped keys",)
    return ()
