"""Peak memory of a benchmark: allocated by torch on a GPU, resident in the process on a CPU."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import torch

RESET_PEAK = "5"
"written to `clear_refs`, resets the peak resident memory to the current one (proc_pid_clear_refs(5))"
PROCESS = Path("/proc/self")


def reset_peak(*, on_gpu: bool) -> None:
    """Reset the peak; on systems that cannot, the peak is that of the whole process."""
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):
        (PROCESS / "clear_refs").write_text(RESET_PEAK)


def peak_bytes(*, on_gpu: bool) -> int:
    """Peak bytes since the last reset."""
    if on_gpu:
        return torch.cuda.max_memory_allocated()
    with suppress(OSError):
        for line in (PROCESS / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return _whole_process_bytes()


def _whole_process_bytes() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
