"""Detection of out-of-memory errors."""

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
    """The result of `work`, or None if the device ran out of memory; everything that it allocated is then free."""
    try:
        return Done(work())
    except torch.OutOfMemoryError:
        pass
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None
