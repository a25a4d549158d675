"""Emulation of another card on this device: its memory, kernels and number formats."""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NoReturn

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from rl_compat.emulation.operations import ForbiddenOperations
from rl_compat.errors import HardwareError
from rl_compat.planning.types import PoolPlan

TRITON_MINIMUM = (7, 0)
"below it torch.compile raises GPUTooOldForTriton and Triton's code does not assemble"
SDPA_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
"by the name in a plan"


@contextmanager
def emulate(plan: PoolPlan) -> Iterator[None]:
    """Let the process work as the plan of a device says while the context is open. Enter it before the model loads.

    This sets the planned number of CPU threads, which stays. On a CUDA device it caps the allocator, allows TF32 only
    if planned, and restricts SDPA to the planned kernels. If the plan emulates another card, also on a CPU, an
    operation, number format or Triton kernel that the card lacks raises HardwareError. All of this is undone
    afterwards.
    """
    if plan.num_threads is not None:
        torch.set_num_threads(plan.num_threads)
    with ExitStack() as stack:
        if plan.device.startswith("cuda"):
            stack.enter_context(memory_cap(plan.device, plan.memory_cap_bytes))
            stack.enter_context(tf32(plan.tf32))
            stack.enter_context(sdpa_backends(plan.sdpa_backends))
        if plan.emulated is not None:
            assert plan.emulated_capability is not None, "a plan that emulates a card has its capability"
            stack.enter_context(lacking(name=plan.emulated, capability=plan.emulated_capability))
        yield


@contextmanager
def lacking(*, name: str, capability: tuple[int, int]) -> Iterator[None]:
    """Reject what a card of that capability lacks, in this thread and those that start inside the context."""
    with ExitStack() as stack:
        if capability < TRITON_MINIMUM:
            for owner, attribute in _triton_entries():
                stack.enter_context(refused(owner, attribute, name=name, capability=capability))
        stack.enter_context(_in_new_threads(name=name, capability=capability))
        stack.enter_context(ForbiddenOperations(name=name, capability=capability))
        yield


@contextmanager
def _in_new_threads(*, name: str, capability: tuple[int, int]) -> Iterator[None]:
    """Forbid operations in threads that start inside the context, since a dispatch mode is per thread."""
    start = threading.Thread.start
    modes: list[ForbiddenOperations] = []

    def start_restricted(thread: threading.Thread) -> None:
        run, mode = thread.run, ForbiddenOperations(name=name, capability=capability)
        modes.append(mode)

        def run_restricted() -> None:
            mode.__enter__()  # the stack of modes ends with the thread
            run()

        thread.run = run_restricted  # type: ignore[method-assign]
        start(thread)

    threading.Thread.start = start_restricted  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
        for mode in modes:
            mode.active = False


@contextmanager
def memory_cap(device: str, cap_bytes: int | None) -> Iterator[None]:
    """Limit torch's allocator on the CUDA device to `cap_bytes`; None means unlimited."""
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


def sdpa_backends(names: Iterable[str]) -> AbstractContextManager[None]:
    """Restrict scaled_dot_product_attention to the named kernels, in every thread."""
    return sdpa_kernel([SDPA_BACKENDS[name] for name in names])


@contextmanager
def refused(owner: Any, attribute: str, *, name: str, capability: tuple[int, int]) -> Iterator[None]:
    """Make calls to `owner.attribute` raise HardwareError."""
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
    """Entry points of compiled kernels: torch.compile, and Triton's launcher if Triton is installed."""
    entries: list[tuple[Any, str]] = [(torch, "compile")]
    if importlib.util.find_spec("triton") is not None:
        entries.append((importlib.import_module("triton.runtime.jit").JITFunction, "run"))
    return entries
