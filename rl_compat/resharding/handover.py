"""The record of a handover: what was moved, how long each phase took, and how much memory it needed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

HandoverPhase = Literal["gather", "convert", "write"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """One transfer of a policy's weights to a rollout, as one rank saw it."""

    version: int
    "policy version that the rollout holds afterwards"
    num_weights: int = 0
    "weights that were transferred: of all, of the adapters, or 0 if both sides share the storage"
    received_bytes: int = 0
    "that came from other ranks or another pool"
    written_bytes: int = 0
    "into the storage of the rollout"
    peak_bytes: int = 0
    "of buffers: memory in addition to the weights of both sides"
    full_bytes: int
    "that a full gather of all weights holds before it loads them"
    seconds: float = 0.0
    gather_seconds: float = 0.0
    "of the transfer between ranks or pools"
    convert_seconds: float = 0.0
    "of packing shards into a buffer, in the dtype that is transferred"
    write_seconds: float = 0.0
    "of writing into the storage of the rollout, in its dtype"


def handover_metrics(handovers: Sequence[Handover]) -> dict[str, float]:
    """Metrics of one handover from the records of its ranks: bytes of all ranks, and the slowest and largest rank."""
    if not handovers:
        return {}
    return {
        "handover/bytes": float(sum(one.received_bytes for one in handovers)),
        "handover/seconds": max(one.seconds for one in handovers),
        "handover/peak_bytes": float(max(one.peak_bytes for one in handovers)),
        "handover/full_bytes": float(max(one.full_bytes for one in handovers)),
    }


class PhaseClock:
    """The seconds of each phase. On a GPU its own clock measures them, so that the host does not wait."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._seconds = dict.fromkeys(("gather", "convert", "write"), 0.0)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._start = time.perf_counter()

    @contextmanager
    def __call__(self, phase: HandoverPhase) -> Iterator[None]:
        """Count the time inside the context."""
        if self._on_gpu:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            yield
            end.record()
            self._events.append((phase, begin, end))
        else:
            start = time.perf_counter()
            yield
            self._seconds[phase] += time.perf_counter() - start

    def seconds(self) -> dict[str, float]:
        """Seconds since the clock was made, and of each phase, as fields of a `Handover`."""
        if self._on_gpu:
            torch.cuda.synchronize()
            for phase, begin, end in self._events:
                self._seconds[phase] += begin.elapsed_time(end) / 1000
            self._events.clear()
        phases = {f"{phase}_seconds": seconds for phase, seconds in self._seconds.items()}
        return {"seconds": time.perf_counter() - self._start} | phases
