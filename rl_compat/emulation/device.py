"""Run on this device as if it were another card: its memory, its kernels and its number formats."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import torch

from rl_compat.emulation.operations import ForbiddenOperations
from rl_compat.errors import HardwareError
from rl_compat.planning.types import PoolPlan

TRITON_MINIMUM = (7, 0)
"below it torch.compile refuses (GPUTooOldForTriton) and Triton's code does not assemble"

SDPA_SWITCHES: dict[str, tuple[Callable[[], bool], Callable[[bool], None]]] = {
    "flash": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    "efficient": (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    "cudnn": (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    "math": (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
}
"name in a plan: read and set"


@contextmanager
def emulate(plan: PoolPlan) -> Iterator[None]:
    """Restrict the process to the planned card while the context is open. Enter it before the model loads.

    On a CUDA device the allocator is capped, TF32 is off unless planned and SDPA keeps to the planned kernels. When
    another card is emulated, on a CPU too, an operation, number format or Triton kernel that it lacks raises
    HardwareError naming it. Everything is as before afterwards.
    """
    with ExitStack() as stack:
        if plan.device.startswith("cuda"):
            stack.enter_context(memory_cap(plan.device, plan.memory_cap_bytes))
            stack.enter_context(tf32(plan.tf32))
            stack.enter_context(sdpa_backends(plan.sdpa_backends))
        if plan.emulated is not None:
            assert plan.emulated_capability is not None, "a plan that emulates a card says its capability"
            stack.enter_context(lacking(name=plan.emulated, capability=plan.emulated_capability))
        yield


@contextmanager
def lacking(*, name: str, capability: tuple[int, int]) -> Iterator[None]:
    """Refuse what a card of that compute capability does not have."""
    with ExitStack() as stack:
        if capability < TRITON_MINIMUM:
            for owner, attribute in _triton_entries():
                stack.enter_context(refused(owner, attribute, name=name, capability=capability))
        stack.enter_context(ForbiddenOperations(name=name, capability=capability))
        yield


@contextmanager
def memory_cap(device: str, cap_bytes: int | None) -> Iterator[None]:
    """Let torch's allocator hold at most `cap_bytes` on the CUDA device; None is no cap."""
    if cap_bytes is None:
        yield
        return
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / total), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in fp32 matrix products and convolutions."""
    matmul, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolution


@contextmanager
def sdpa_backends(names: Sequence[str]) -> Iterator[None]:
    """Let scaled_dot_product_attention use only the named kernels, in every thread."""
    before = {name: read() for name, (read, _) in SDPA_SWITCHES.items()}
    for name, (_, set_enabled) in SDPA_SWITCHES.items():
        set_enabled(name in names)
    try:
        yield
    finally:
        for name, (_, set_enabled) in SDPA_SWITCHES.items():
            set_enabled(before[name])


@contextmanager
def refused(owner: Any, attribute: str, *, name: str, capability: tuple[int, int]) -> Iterator[None]:
    """Make a call of `owner.attribute` raise HardwareError."""
    original = getattr(owner, attribute)

    def refuse(*_: object, **__: object) -> NoReturn:
        raise HardwareError(
            f"`{owner.__name__}.{attribute}` needs compute capability {TRITON_MINIMUM[0]}.{TRITON_MINIMUM[1]}, "
            f"the emulated `{name}` has {capability[0]}.{capability[1]}"
        )

    setattr(owner, attribute, refuse)
    try:
        yield
    finally:
        setattr(owner, attribute, original)


def _triton_entries() -> list[tuple[Any, str]]:
    """Where compiled kernels start: torch.compile, and Triton's launcher when it is installed."""
    entries: list[tuple[Any, str]] = [(torch, "compile")]
    if importlib.util.find_spec("triton") is not None:
        entries.append((importlib.import_module("triton.runtime.jit").JITFunction, "run"))
    return entries
