"""The peers of the benchmark generate what the model does."""

from __future__ import annotations

import pytest
import torch
from rollout.conftest import PROMPTS, forward_logprobs, plain_generate
from rollout.conftest import llama as llama
from torch import nn

from rl_compat.bench.engines import PlainGenerate, VllmAlone
from rl_compat.planning.types import RolloutPlan
from rl_compat.resharding.source import SharedStorage
from rl_compat.rollout.types import SamplingParams


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
