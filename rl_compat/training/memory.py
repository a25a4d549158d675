"""Out of memory, told apart and answered; and the peak of what a device held."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Done(Generic[Result]):
    value: Result


def unless_out_of_memory(work: Callable[[], Result]) -> Done[Result] | None:
    """What `work` returns, or None when the device's memory did not suffice; everything it held is then free."""
    try:
        return Done(work())
    except torch.OutOfMemoryError:
        pass
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None


def reset_peak(device: str) -> None:
    """Start a new measurement of `peak_bytes`."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: str) -> int | None:
    """Most bytes that tensors held on a CUDA device since `reset_peak`; None elsewhere."""
    if torch.device(device).type != "cuda":
        return None
    return torch.cuda.max_memory_allocated(device)
