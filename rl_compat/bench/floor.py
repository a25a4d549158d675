"""The minimum time of a decode step on a device, from its measured bandwidth and arithmetic throughput."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rl_compat.bench.cases import BenchCase
from rl_compat.models.load import TORCH_DTYPES
from rl_compat.rollout.inference import hugging_face_model


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
