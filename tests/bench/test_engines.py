"""What is timed: calls after new weights, with nothing left of the call before."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from rollout.conftest import PROMPTS, forward_logprobs, plain_generate
from rollout.conftest import llama as llama
from torch import nn

from rl_compat.bench.engines import PlainGenerate, VllmAlone
from rl_compat.bench.measure import measure
from rl_compat.bench.options import BenchOptions
from rl_compat.bench.worker import fixed_case
from rl_compat.planning.types import RolloutPlan
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


def test_generate_samples_in_batches_and_cuts_at_a_stop_token(llama: nn.Module) -> None:
    torch.manual_seed(0)
    stops = tuple(range(40, 60))
    params = SamplingParams(max_new_tokens=9, stop_token_ids=stops)
    responses = [group[0] for group in PlainGenerate(llama, batch=2).generate(PROMPTS, params)]
    assert len(responses) == len(PROMPTS) and any(response.finish_reason == "stop" for response in responses)
    for response in responses:
        ended = response.token_ids[-1] in stops
        assert ended == (response.finish_reason == "stop") and (ended or len(response.token_ids) == 9)
        assert not set(response.token_ids[:-1]) & set(stops)


@pytest.mark.vllm
def test_vllm_alone_gives_the_tokens_of_the_model_and_their_log_probabilities(llama: nn.Module) -> None:
    plan = RolloutPlan(
        engine="vllm",
        compute_dtype="fp32",
        max_num_seqs=2,
        max_prefill_tokens=64,
        max_model_len=64,
        kv_cache_bytes=2**20,
    )
    peer = VllmAlone(llama, plan=plan)
    peer.generate(PROMPTS[:3], SamplingParams(max_new_tokens=2))
    peer.load(SharedStorage(llama, version=1))
    groups = peer.generate(PROMPTS[:3], SamplingParams(max_new_tokens=6, temperature=0.0))
    peer.stop()
    for prompt, (response,) in zip(PROMPTS[:3], groups, strict=True):
        assert list(response.token_ids) == plain_generate(llama, prompt, 6)
        expected = forward_logprobs(llama, prompt, response.token_ids, 1.0)
        torch.testing.assert_close(torch.tensor(response.logprobs), expected, atol=1e-3, rtol=0)
