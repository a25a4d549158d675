"""This project's own forward computes what each model family's own does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from rollout.conftest import PROMPTS, build, forward_logprobs, plain_generate, small
from torch import nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from rl_compat.rollout.build import native_unsupported_reason, own_forward_reason
from rl_compat.rollout.native.decoder_spec import UnknownDecoderError, read_spec
from rl_compat.rollout.native.engine import NativeEngine
from rl_compat.rollout.types import SamplingParams

GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]


def phi() -> nn.Module:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    return PhiForCausalLM(small(PhiConfig, qk_layernorm=True, rope_parameters=rope))


def longrope() -> nn.Module:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "factor": 4.0,
    }
    return Phi3ForCausalLM(small(Phi3Config, rope_parameters=rope, original_max_position_embeddings=64))


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "llama": lambda: LlamaForCausalLM(small(LlamaConfig, mlp_bias=True, attention_bias=True)),
    "llama3 rotary": lambda: LlamaForCausalLM(small(LlamaConfig, rope_parameters=LLAMA3_ROPE)),
    "mistral window": lambda: MistralForCausalLM(small(MistralConfig, sliding_window=5)),
    "mistral": lambda: MistralForCausalLM(small(MistralConfig, sliding_window=None, tie_word_embeddings=False)),
    "qwen2": lambda: Qwen2ForCausalLM(small(Qwen2Config)),
    "qwen2 windows": lambda: Qwen2ForCausalLM(
        small(Qwen2Config, use_sliding_window=True, sliding_window=4, layer_types=MIXED)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(small(Qwen3Config)),
    "gemma": lambda: GemmaForCausalLM(small(GemmaConfig)),
    "gemma2": lambda: Gemma2ForCausalLM(
        small(
            Gemma2Config,
            sliding_window=6,
            layer_types=MIXED,
            query_pre_attn_scalar=8,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        )
    ),
    "gemma3": lambda: Gemma3ForCausalLM(
        small(Gemma3TextConfig, sliding_window=6, layer_types=MIXED, query_pre_attn_scalar=8)
    ),
    "phi": phi,
    "phi3": lambda: Phi3ForCausalLM(small(Phi3Config)),
    "smollm3": lambda: SmolLM3ForCausalLM(small(SmolLM3Config, no_rope_layers=[1, 0, 1])),
}


@pytest.fixture(params=list(FAMILIES))
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(3)
    made = FAMILIES[request.param]().eval()
    made.set_attn_implementation("eager")
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def test_greedy_tokens_and_logprobs_are_those_of_the_models_own_forward(model: nn.Module) -> None:
    assert own_forward_reason(model) is None
    engine = build("native", model)
    assert isinstance(engine, NativeEngine) and engine._own_forward
    groups = engine.generate(PROMPTS, GREEDY)
    assert [list(group[0].token_ids) for group in groups] == [plain_generate(model, prompt, 12) for prompt in PROMPTS]
    for prompt, (response,) in zip(PROMPTS, groups, strict=True):
        expected = forward_logprobs(model, prompt, response.token_ids, 1.0)
        torch.testing.assert_close(torch.tensor(response.logprobs), expected, atol=2e-5, rtol=0)


def test_a_shared_start_of_prompts_changes_no_token(model: nn.Module) -> None:
    start = tuple(range(10, 24))
    prompts = [(*start, 50, 51), (*start, 52), (*start, 50, 51, 53, 54), start]
    groups = build("native", model, max_num_seqs=2).generate(prompts, GREEDY)
    assert [list(group[0].token_ids) for group in groups] == [plain_generate(model, prompt, 12) for prompt in prompts]


def test_a_bf16_copy_stays_near(model: nn.Module) -> None:
    response = build("native", model, compute_dtype="bf16").generate(PROMPTS[:1], GREEDY)[0][0]
    expected = forward_logprobs(model, PROMPTS[0], response.token_ids, 1.0)
    torch.testing.assert_close(torch.tensor(response.logprobs), expected, atol=0.2, rtol=0)


def test_angles_that_depend_on_the_length_are_left_to_the_model() -> None:
    with pytest.raises(UnknownDecoderError, match="longrope"):
        read_spec(longrope())


def test_a_family_that_computes_otherwise_than_described_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(small(LlamaConfig)).eval()
    for layer in model.model.layers:
        layer.self_attn.scaling = 0.1
        layer.input_layernorm.forward = lambda states: states * 0.3
    reason = own_forward_reason(model)
    assert reason is not None
    assert float(reason.split(" by ")[1].split()[0]) > 0.1
    groups = build("native", model).generate(PROMPTS, GREEDY)
    assert "calls the model's own forward" in caplog.text
    assert [list(group[0].token_ids) for group in groups] == [plain_generate(model, prompt, 12) for prompt in PROMPTS]


WIDE_HEADS: dict[str, Callable[[], nn.Module]] = {
    "llama": lambda: LlamaForCausalLM(small(LlamaConfig, head_dim=32, attention_bias=True)),
    "qwen3": lambda: Qwen3ForCausalLM(small(Qwen3Config, head_dim=64)),
    "gemma2": lambda: Gemma2ForCausalLM(
        small(
            Gemma2Config,
            head_dim=32,
            sliding_window=6,
            layer_types=MIXED,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        )
    ),
    "phi": phi,
}


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("family", list(WIDE_HEADS))
def test_kernels_and_graphs_give_the_tokens_of_the_cpu(family: str, graphs: bool) -> None:
    torch.manual_seed(3)
    model = WIDE_HEADS[family]().eval()
    prompts = [tuple(10 + i % 80 for i in range(length)) for length in (1, 3, 40, 150)]
    for params in (SamplingParams(max_new_tokens=30, temperature=0.0), SamplingParams(max_new_tokens=30, seed=5)):
        expected = build("native", model.to("cpu")).generate(prompts, params, group_size=2)
        groups = build("native", model.to("cuda"), cuda_graphs=graphs).generate(prompts, params, group_size=2)
        for ours, theirs in zip((r for g in groups for r in g), (r for g in expected for r in g), strict=True):
            assert ours.token_ids == theirs.token_ids
            torch.testing.assert_close(torch.tensor(ours.logprobs), torch.tensor(theirs.logprobs), atol=1e-3, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("compute_dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("family", list(WIDE_HEADS))
def test_kernels_in_half_precision_stay_near(family: str, compute_dtype: str) -> None:
    torch.manual_seed(3)
    model = WIDE_HEADS[family]().eval().to("cuda")
    engine = build("native", model, cuda_graphs=True, compute_dtype=compute_dtype)
    response = engine.generate(PROMPTS[:2], GREEDY, group_size=3)[1][2]
    expected = forward_logprobs(model.to("cpu"), PROMPTS[1], response.token_ids, 1.0)
    torch.testing.assert_close(torch.tensor(response.logprobs), expected, atol=0.2, rtol=0)


def test_a_model_whose_attention_caps_its_logits_is_refused_by_the_slot_cache_with_a_reason() -> None:
    model = Gemma2ForCausalLM(
        small(Gemma2Config, layer_types=MIXED, sliding_window=6, attn_logit_softcapping=2.0)
    ).eval()
    model.config._attn_implementation = "sdpa"
    assert "ModelError" in str(native_unsupported_reason(model))
