"""vLLM on the trainer's GPU: memory, weights written in place, draws by kernel, fp32 that is fp32."""

from __future__ import annotations

import gc

import pytest
import torch
from rollout.conftest import build, load_newest
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from rl_compat.rollout.kernels.fused_ops import FusedDraw
from rl_compat.rollout.sampling import plain_draw
from rl_compat.rollout.types import Response, SamplingParams
from rl_compat.rollout.vllm.engine import VllmEngine

pytestmark = [pytest.mark.gpu, pytest.mark.vllm]

GIB = 2**30
WORDS = [[100 + 37 * row + place for place in range(20 + row)] for row in range(8)]
GREEDY = SamplingParams(max_new_tokens=16, temperature=0.0)
SAMPLED = SamplingParams(max_new_tokens=16, temperature=0.8, seed=3, raw_logprobs=True)


@pytest.fixture
def qwen() -> nn.Module:
    """A tenth of the layers of Qwen2.5-0.5B, with random weights."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=3,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        initializer_range=0.05,
    )
    return Qwen2ForCausalLM(config).cuda().eval()


def engine_over(model: nn.Module, **changes: object) -> VllmEngine:
    settings = {"max_model_len": 384, "max_prefill_tokens": 2048, "kv_cache_bytes": 2 * GIB} | changes
    engine = build("vllm", model, **settings)
    assert isinstance(engine, VllmEngine)
    return engine


def used_bytes() -> int:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free


def tokens(groups: list[list[Response]]) -> list[list[tuple[int, ...]]]:
    return [[response.token_ids for response in group] for group in groups]


@torch.no_grad()
def gaps(model: nn.Module, groups: list[list[Response]]) -> torch.Tensor:
    """Differences of log-probabilities at temperature 1 from a forward of the model."""
    found = []
    for prompt, group in zip(WORDS, groups, strict=True):
        for response in group:
            ids = torch.tensor([[*prompt, *response.token_ids]], device="cuda")
            logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
            plain = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None]).squeeze(1).cpu()
            found.append((plain - torch.tensor(response.raw_logprobs or response.logprobs)).abs())
    return torch.cat(found)


@torch.no_grad()
def shake(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.mul_(1 + 0.2 * torch.randn_like(parameter))


@pytest.mark.parametrize(("cuda_graphs", "asleep"), [(True, False), (True, True), (False, False)])
def test_stopping_gives_back_all_but_a_little_and_a_second_engine_works(
    qwen: nn.Module, cuda_graphs: bool, asleep: bool
) -> None:
    before = used_bytes()
    engine = engine_over(qwen, compute_dtype="bf16", cuda_graphs=cuda_graphs)
    engine.generate(WORDS, SAMPLED)
    assert used_bytes() - before > 2 * GIB
    if asleep:
        engine.sleep()

    engine.stop()

    assert used_bytes() - before < GIB
    second = engine_over(qwen, compute_dtype="bf16", cuda_graphs=cuda_graphs)
    second.generate(WORDS, SAMPLED)
    second.sleep()
    assert gaps(qwen, second.generate(WORDS, SAMPLED)).mean() < 0.15
    second.stop()
    assert used_bytes() - before < GIB


def test_plain_weights_are_written_in_place_and_seen_awake_and_asleep(qwen: nn.Module) -> None:
    engine = engine_over(qwen, compute_dtype="bf16")
    assert engine._in_place
    for sleeps in (False, True):
        shake(qwen)
        stale = gaps(qwen, engine.generate(WORDS, GREEDY)).mean()
        if sleeps:
            engine.sleep()
        load_newest(engine)
        fresh = gaps(qwen, engine.generate(WORDS, GREEDY)).mean()
        assert fresh < 0.15 < stale
    assert [line for line in engine._log.lines if "Failed to load" in line] == []


def test_a_reload_gives_the_same_numbers_as_writing_in_place(qwen: nn.Module) -> None:
    engine = engine_over(qwen, compute_dtype="fp32")
    shake(qwen)
    load_newest(engine, version=1)
    in_place = engine.generate(WORDS, SAMPLED)
    engine._in_place = False
    load_newest(engine, version=1)
    assert engine.generate(WORDS, SAMPLED) == in_place


def test_fp32_is_within_rounding_of_a_forward_in_fp32(qwen: nn.Module) -> None:
    torch.set_float32_matmul_precision("highest")
    engine = engine_over(qwen, compute_dtype="fp32", cuda_graphs=True)
    assert gaps(qwen, engine.generate(WORDS, SAMPLED, group_size=2)).max() < 2e-3


def test_a_kernel_draws_in_vllm_what_pytorch_draws(qwen: nn.Module) -> None:
    engine = engine_over(qwen, compute_dtype="fp32")
    assert isinstance(engine._draw, FusedDraw)
    ours = engine.generate(WORDS, SAMPLED, group_size=2)
    engine._draw = plain_draw
    plain = engine.generate(WORDS, SAMPLED, group_size=2)
    assert tokens(ours) == tokens(plain)
