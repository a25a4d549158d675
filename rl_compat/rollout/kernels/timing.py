"""The time of an operation on a CUDA device, with or without its launch."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch

Seconds = Callable[[Callable[[], object]], float]
"seconds of one run of an operation"
REPEATS = 10
"runs of an operation in one measurement"


def captured_seconds(run: Callable[[], object]) -> float:
    """Seconds of one run without its launch: several runs in one graph, the best of five replays."""
    run()
    stream = _side_stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        run()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(REPEATS):
                run()
    times: list[float] = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000 / REPEATS)
    return min(times)


@cache
def _side_stream() -> torch.cuda.Stream:
    """The stream of all measurements. cuBLAS keeps a workspace, 32 MiB on Hopper, for every stream that it has used."""
    return torch.cuda.Stream()


def launched_seconds(run: Callable[[], object]) -> float:
    """Seconds of one run including its launch: several runs, the best of five rounds."""
    run()
    times: list[float] = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(REPEATS):
            run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / REPEATS)
    return min(times)
