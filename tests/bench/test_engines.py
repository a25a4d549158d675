"""What is timed: calls after new weights, with nothing left of the call before."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from rl_compat.bench.measure import measure
from rl_compat.bench.options import BenchOptions
from rl_compat.bench.worker import fixed_case
from rl_compat.resharding.source import SharedStorage, WeightSource
from rl_compat.rollout.types import Response, SamplingParams


class Recorder:
    """An engine that only records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, group_size: int = 1
    ) -> list[list[Response]]:
        self.calls.append(f"generate {params.max_new_tokens}")
        ids = tuple(range(params.max_new_tokens))
        return [[Response(token_ids=ids, logprobs=(), finish_reason="length")] for _ in prompts]

    def load(self, source: WeightSource) -> None:
        self.calls.append(f"load {source.version}")


def test_every_call_follows_new_weights_so_that_no_prompt_is_cached() -> None:
    source = SharedStorage(torch.nn.Linear(1, 1), version=3)
    engine, case = Recorder(), fixed_case(50, batch=3, prompt_length=4, new_tokens=8)
    row = measure("native-fp32", engine, case, source, device="cpu", repeats=2)
    assert engine.calls[::2] == ["load 3"] * 5
    assert engine.calls[1::2] == ["generate 8"] * 3 + ["generate 1"] * 2
    assert (row.tokens, row.batch, row.prompt_tokens, row.new_tokens) == (24, 3, 4, 8)
    assert row.tokens_per_second == pytest.approx(24 / row.seconds) and row.step_seconds is not None


def test_each_model_is_measured_in_a_process_of_its_own() -> None:
    both = BenchOptions(device="cpu", shape="small", model="folder", batches=(2, 4), questions=(8,))
    assert [(part.shape, part.model, part.num_cases) for part in both.apart()] == [
        ("small", None, 3),
        (None, "folder", 1),
    ]
    assert [part.model for part in BenchOptions(device="cpu", shape=None, model="folder").apart()] == ["folder"]
    assert [part.shape for part in BenchOptions(device="cpu", shape="small").apart()] == ["small"]
