"""A model whose numbers are NaN or infinite: generation stops and names the prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes.models import save_random_model
from rollout.conftest import PROMPTS, build
from rollout.emulated_kernels import COMPILER, EmulatedKernels
from torch import nn
from transformers import AutoModelForCausalLM

from rl_compat.errors import NotFiniteError
from rl_compat.rollout.kernels.fused_ops import FusedDraw
from rl_compat.rollout.sampling import plain_draw
from rl_compat.rollout.types import Request, SamplingParams

DRAWS = {
    "greedy": SamplingParams(max_new_tokens=6, temperature=0.0),
    "drawn": SamplingParams(max_new_tokens=6, seed=1),
    "filtered": SamplingParams(max_new_tokens=6, seed=1, temperature=0.7, top_p=0.9, top_k=20, min_p=0.01),
}


@pytest.fixture
def untied(tmp_path: Path) -> nn.Module:
    folder = save_random_model(
        tmp_path / "m", family="llama", hidden_size=64, num_heads=2, num_kv_heads=1, tie_word_embeddings=False
    )
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def spoil(model: nn.Module, part: str, value: float) -> None:
    """`value` in the embedding of a token of the third prompt, or in a row of the output layer."""
    with torch.no_grad():
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        (embedding if part == "embedding" else head)[PROMPTS[2][0]].fill_(value)


@pytest.mark.parametrize("params", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize(("part", "value"), [("embedding", torch.nan), ("head", torch.nan), ("head", torch.inf)])
def test_numbers_that_are_not_finite_stop_the_call(
    engine_name: str, untied: nn.Module, params: SamplingParams, part: str, value: float
) -> None:
    spoil(untied, part, value)
    with pytest.raises(NotFiniteError) as error:
        build(engine_name, untied).generate(PROMPTS, params, group_size=2)
    assert "`fp32`" in error.value.message and "token 1 " in error.value.message
    assert error.value.number == (4 if part == "embedding" else 0)
    assert "fp32" not in str(error.value.hint)


def test_prompts_that_do_not_meet_the_broken_weights_are_answered_afterwards(
    engine_name: str, untied: nn.Module
) -> None:
    good = [prompt for prompt in PROMPTS if prompt is not PROMPTS[2]]
    expected = build(engine_name, untied).generate(good, DRAWS["drawn"])
    spoil(untied, "embedding", torch.nan)
    engine = build(engine_name, untied)
    with pytest.raises(NotFiniteError):
        engine.generate(PROMPTS, DRAWS["drawn"])
    assert engine.generate(good, DRAWS["drawn"]) == expected


def test_a_session_that_is_stepped_stops_too(untied: nn.Module) -> None:
    spoil(untied, "head", torch.nan)
    engine = build("native", untied)
    engine.submit([Request(prompt_ids=PROMPTS[0], params=DRAWS["drawn"])])
    with pytest.raises(NotFiniteError):
        while engine.num_unfinished:
            engine.step()


@pytest.mark.parametrize("vocab_size", [97, 256, 2100])
@pytest.mark.parametrize("params", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("fused", [False, pytest.param(True, marks=pytest.mark.skipif(not COMPILER, reason="no g++"))])
def test_logits_that_are_not_numbers_draw_a_known_id_of_unknown_probability(
    vocab_size: int, params: SamplingParams, fused: bool
) -> None:
    logits = torch.randn(4, vocab_size)
    logits[0], logits[1, 5], logits[2, 7] = torch.nan, torch.nan, torch.inf
    macros = {"STREAM": "float", "NORM": "float", "COMPUTE": "float", "HEAD_DIM": 64, "GROUP": 1}
    draw = FusedDraw(EmulatedKernels(macros)) if fused else plain_draw
    uniform = torch.tensor([0.0, 0.5, 0.9, 0.3], dtype=torch.float64)
    tokens, logprobs, _ = draw(logits, uniform, params, num_valid_tokens=90)
    assert ((tokens >= 0) & (tokens < 90)).all()
    assert logprobs.isnan().tolist() == [True, True, True, False]
