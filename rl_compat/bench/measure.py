"""The measurement: seconds and peak memory of an engine on a case, and the minimum time of a step on this device."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from rl_compat.bench.options import ENGINES
from rl_compat.models.load import TORCH_DTYPES
from rl_compat.resharding.source import WeightSource
from rl_compat.rollout.inference import hugging_face_model
from rl_compat.rollout.types import Response, SamplingParams

RESET_PEAK = "5"
"written to `clear_refs`, resets the peak resident memory to the current one (proc_pid_clear_refs(5))"
PROCESS = Path("/proc/self")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCase:
    name: str
    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    batch: int
    "concurrent sequences"


class Generates(Protocol):
    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, group_size: int = ...
    ) -> Sequence[Sequence[Response]]: ...

    def load(self, source: WeightSource) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result of one engine on one case: the best of its calls."""

    engine: str
    dtype: str
    case: str
    batch: int
    "concurrent sequences"
    prompt_tokens: int
    "mean tokens of a prompt"
    new_tokens: int
    "maximum tokens of a response"
    tokens: int
    "tokens of all responses"
    seconds: float
    first_seconds: float
    "seconds of the first call, which compiles, captures and allocates"
    tokens_per_second: float
    step_seconds: float | None
    "seconds per decode step, without prefill; None if responses have different lengths"
    peak_bytes: int
    "peak memory: allocated by torch on a GPU, resident in the process on a CPU"
    num_parameters: int | None = None
    "bytes of the model's weights"
    start_seconds: float = 0.0
    "seconds to build the engine, in which vLLM loads, compiles and captures"
    floor_fraction: float | None = None
    "the minimum time for weights, cache and arithmetic on this device, as a fraction of a step"


def measure(
    name: str,
    engine: Generates,
    case: BenchCase,
    source: WeightSource,
    *,
    device: str,
    repeats: int,
) -> Row:
    """The best of a first call and `repeats` further ones, and a call for one token that measures the prefill."""
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.synchronize()
    reset_peak(on_gpu=on_gpu)
    calls = [_timed(engine, case.prompts, case.params, source, on_gpu=on_gpu) for _ in range(1 + repeats)]
    first, (seconds, tokens) = calls[0][0], min(calls)
    step = None
    if not case.params.stop_token_ids and len(case.prompts) <= case.batch:
        one = SamplingParams(max_new_tokens=1, seed=0)
        prefill = min(_timed(engine, case.prompts, one, source, on_gpu=on_gpu)[0] for _ in range(2))
        step = (seconds - prefill) / (case.params.max_new_tokens - 1)
    return Row(
        engine=name,
        dtype=ENGINES[name][1],
        case=case.name,
        batch=case.batch,
        prompt_tokens=round(sum(map(len, case.prompts)) / len(case.prompts)),
        new_tokens=case.params.max_new_tokens,
        tokens=tokens,
        seconds=seconds,
        first_seconds=first,
        tokens_per_second=tokens / seconds,
        step_seconds=step,
        peak_bytes=peak_bytes(on_gpu=on_gpu),
    )


def _timed(
    engine: Generates, prompts: Sequence[Sequence[int]], params: SamplingParams, source: WeightSource, *, on_gpu: bool
) -> tuple[float, int]:
    """Seconds and tokens of a call after a weight update, which empties prefix caches."""
    engine.load(source)
    if on_gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    groups = engine.generate(prompts, params)
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return seconds, sum(len(response.token_ids) for group in groups for response in group)


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
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Rates of a device, measured with large simple operations."""

    bytes_per_second: float
    operations_per_second: float
    "multiplications and additions per second of matrix products in the dtype"


def measured_speeds(device: str, dtype: str) -> Speeds:
    """Measure a copy that exceeds all caches, and a square matrix product."""
    on_gpu = device.startswith("cuda")
    size = 2**28 if on_gpu else 2**25
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_seconds = _best(lambda: target.copy_(source), on_gpu=on_gpu)
    width = 4096 if on_gpu else 768
    left = torch.ones(width, width, dtype=TORCH_DTYPES[dtype], device=device)
    product_seconds = _best(lambda: left @ left, on_gpu=on_gpu)
    return Speeds(bytes_per_second=2 * size / copy_seconds, operations_per_second=2 * width**3 / product_seconds)


def floor_seconds(model: nn.Module, case: BenchCase, speeds: Speeds, dtype: str) -> float:
    """The minimum seconds of a step at the mean length: weights and cache are read once, products run at full speed."""
    inner: Any = hugging_face_model(model)
    config = inner.config.get_text_config()
    width = torch.empty(0, dtype=TORCH_DTYPES[dtype]).element_size()
    head = inner.get_output_embeddings().weight.numel()
    matrices = sum(module.weight.numel() for module in inner.modules() if isinstance(module, nn.Linear)) - head
    length = sum(map(len, case.prompts)) / len(case.prompts) + case.params.max_new_tokens / 2
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cached = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * length * case.batch
    moved = (matrices + cached) * width + head * 4
    return float(
        max(moved / speeds.bytes_per_second, 2 * (matrices + head) * case.batch / speeds.operations_per_second)
    )


def _best(run: Callable[[], object], *, on_gpu: bool) -> float:
    times = []
    for _ in range(6):
        start = time.perf_counter()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)
