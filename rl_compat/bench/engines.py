"""The benchmarked engines by name, and the measurement."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import nn

from rl_compat.bench.cases import BenchCase
from rl_compat.bench.memory import peak_bytes, reset_peak
from rl_compat.bench.options import ENGINES
from rl_compat.bench.peers import PlainGenerate
from rl_compat.bench.vllm_alone import VllmAlone
from rl_compat.models.load import TORCH_DTYPES
from rl_compat.planning.types import RolloutPlan
from rl_compat.resharding.source import WeightSource
from rl_compat.rollout.build import build_rollout_engine
from rl_compat.rollout.types import Response, SamplingParams


class Generates(Protocol):
    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, group_size: int = ...
    ) -> Sequence[Sequence[Response]]: ...

    def load(self, source: WeightSource) -> None: ...


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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def engine_for(
    name: str, model: nn.Module, *, batch: int, max_length: int, architecture: str | None = None
) -> Generates:
    """The engine of a name in `ENGINES`. `generate` in half precision changes the dtype of the model."""
    kind, dtype = ENGINES[name]
    on_gpu = next(model.parameters()).is_cuda
    if kind == "generate":
        return PlainGenerate(model if dtype == "fp32" else model.to(TORCH_DTYPES[dtype]), batch=batch)
    is_vllm = kind.startswith("vllm")
    plan = RolloutPlan(
        engine="vllm" if is_vllm else kind,
        compute_dtype=dtype,
        max_num_seqs=batch,
        max_prefill_tokens=8192,
        cuda_graphs=on_gpu,
        packed_linears=kind == "native" and not on_gpu and dtype == "fp32",
        gpu_memory_utilization=0.5 if is_vllm and on_gpu else None,
        max_model_len=max_length if is_vllm else None,
        kernel_architecture=architecture,
    )
    if kind == "vllm-alone":
        return VllmAlone(model, plan=plan)
    return build_rollout_engine(model, plan=plan, pad_token_id=0)


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
