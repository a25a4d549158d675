"""The engine that a plan gets, and the reason when it gets another."""

from __future__ import annotations

import logging

import pytest
import torch
from rollout.conftest import PROMPTS, build, plain_generate
from torch import nn
from transformers import BloomConfig, BloomForCausalLM, MambaConfig, MambaForCausalLM

from rl_compat.rollout.build import native_unsupported_reason
from rl_compat.rollout.types import SamplingParams


def bloom() -> nn.Module:
    """Positions come from the padding mask, not from position ids."""
    torch.manual_seed(0)
    return BloomForCausalLM(
        BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.2)
    ).eval()


def mamba() -> nn.Module:
    """Keeps a state instead of keys and values."""
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2, state_size=4, initializer_range=0.2)
    return MambaForCausalLM(config).eval()


def test_the_plan_names_the_engine(llama: nn.Module) -> None:
    assert type(build("native", llama)).__name__ == "NativeEngine"
    assert type(build("transformers", llama)).__name__ == "TransformersEngine"
    with pytest.raises(AssertionError, match="sglang"):
        build("sglang", llama)


@pytest.mark.parametrize("make", [bloom, mamba])
def test_a_model_that_cannot_run_natively_falls_back_and_says_why(
    make: object, caplog: pytest.LogCaptureFixture
) -> None:
    model = make()
    with caplog.at_level(logging.WARNING, logger="rl_compat"):
        engine = build("native", model)
    assert type(engine).__name__ == "TransformersEngine"
    assert "cannot run this model: " in caplog.text
    groups = engine.generate(PROMPTS, SamplingParams(max_new_tokens=6, temperature=0.0))
    assert [list(g[0].token_ids) for g in groups] == [plain_generate(model, prompt, 6) for prompt in PROMPTS]


def test_asking_leaves_the_model_as_it_was(llama: nn.Module) -> None:
    llama.train()
    attention = llama.config._attn_implementation
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert native_unsupported_reason(llama) is None
    assert llama.training
    assert llama.config._attn_implementation == attention
    assert torch.equal(torch.get_rng_state(), before)


def test_the_trial_of_a_model_is_exact_whatever_the_matmul_precision(llama: nn.Module) -> None:
    """TF32 is on in the profiles of new cards; its rounding says nothing about the engine."""
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert native_unsupported_reason(llama) is None
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
