"""Which ways of launching and fusing kernels a machine supports.

`torch.compile` and the Triton kernels of torch need compute capability 7.0. CUDA graphs replay recorded launches on any
card. TF32 products exist from 8.0. Each function returns every reason against; empty if it works.
"""

from __future__ import annotations

import re

from rl_compat.capability.binaries import parse_version
from rl_compat.capability.devices import NEEDS_CUDA, against_package, below, on_cpu, torch_version
from rl_compat.hardware.gpu.catalogue import read_table
from rl_compat.hardware.types import Hardware

TRITON_MINIMUM = (7, 0)
TF32_MINIMUM = (8, 0)


def against_triton(hardware: Hardware) -> tuple[str, ...]:
    return NEEDS_CUDA if on_cpu(hardware) else below(hardware, TRITON_MINIMUM) + against_installed_triton(hardware)


def against_installed_triton(hardware: Hardware) -> tuple[str, ...]:
    """Why the installed Triton does not work with torch: missing, broken, or of another minor than torch requires.

    Empty if that is unknown: without a list of packages, or for a torch whose requirements the tables do not list.
    """
    software, wanted = hardware.software, required_triton(hardware)
    if not software.packages or wanted is None:
        return ()
    version = software.packages.get("triton")
    if version is None or parse_version(version)[:2] != parse_version(wanted)[:2]:
        there = f"and {version} is installed" if version else "which is not installed"
        return (f"torch {torch_version(hardware)} needs triton {wanted}, {there}",)
    return against_package(hardware, "triton")


def required_triton(hardware: Hardware) -> str | None:
    """The Triton that the installed torch requires; None for builds other than the published CUDA wheels for x86_64."""
    torch = hardware.software.torch
    published = torch is not None and re.fullmatch(r"[0-9.]+(\+cu[0-9]+)?", torch.version) is not None
    if torch is None or torch.cuda is None or not published or not hardware.host.platform.endswith("x86_64"):
        return None
    release, rows = parse_version(torch.version)[:2], read_table("torch")["releases"]
    return next((str(row["triton"]) for row in rows if parse_version(row["torch"]) == release), None)


def against_compile(hardware: Hardware) -> tuple[str, ...]:
    """Of `torch.compile`."""
    if on_cpu(hardware):
        return ("needs a C++ compiler on a CPU, and is not used there",)
    return against_triton(hardware)


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
