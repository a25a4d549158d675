"""Models run through their own forward over the slots: the way for families that are not described here."""

from __future__ import annotations

import pytest
import torch
from rollout.conftest import PROMPTS, build, forward_logprobs, plain_generate
from rollout.native.test_own_forward import FAMILIES, longrope
from torch import nn

from rl_compat.planning.types import RolloutPlan
from rl_compat.rollout.build import native_unsupported_reason
from rl_compat.rollout.native.engine import NativeEngine
from rl_compat.rollout.types import SamplingParams

GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)
SAMPLED = SamplingParams(max_new_tokens=12, seed=7, temperature=0.9, top_p=0.95)


def engine_over(model: nn.Module, **changes: object) -> NativeEngine:
    settings = {"compute_dtype": "fp32", "max_num_seqs": 3, "max_prefill_tokens": 64} | changes
    return NativeEngine(model, plan=RolloutPlan(engine="native", **settings), own_forward=False)


@pytest.fixture(params=[*FAMILIES, "longrope"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(3)
    made = longrope() if request.param == "longrope" else FAMILIES[request.param]()
    if request.param == "gemma2":
        made.set_attn_implementation("eager")
    return made.eval()


def test_greedy_tokens_and_logprobs_are_those_of_plain_generate(model: nn.Module) -> None:
    assert native_unsupported_reason(model) is None
    groups = engine_over(model).generate(PROMPTS, GREEDY, group_size=2)
    assert [list(group[1].token_ids) for group in groups] == [plain_generate(model, prompt, 12) for prompt in PROMPTS]
    for prompt, group in zip(PROMPTS, groups, strict=True):
        expected = forward_logprobs(model, prompt, group[0].token_ids, 1.0)
        torch.testing.assert_close(torch.tensor(group[0].logprobs), expected, atol=1e-4, rtol=0)


def test_both_forwards_draw_the_same_tokens(qwen2: nn.Module) -> None:
    ours = build("native", qwen2).generate(PROMPTS, SAMPLED, group_size=2)
    theirs = engine_over(qwen2).generate(PROMPTS, SAMPLED, group_size=2)
    assert [[r.token_ids for r in g] for g in theirs] == [[r.token_ids for r in g] for g in ours]


def test_the_attention_of_the_model_is_as_before_afterwards(qwen2: nn.Module) -> None:
    before = qwen2.config._attn_implementation
    engine_over(qwen2).generate(PROMPTS, GREEDY)
    assert qwen2.config._attn_implementation == before
