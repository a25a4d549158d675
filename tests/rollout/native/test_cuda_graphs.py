"""Captured steps: few, planned in memory, and right after the weights have changed."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch
from fakes.machines import QWEN_05B
from peft import LoraConfig, get_peft_model
from planning.memory.test_budget import REQUEST, changed
from rollout.conftest import PROMPTS, build, load_newest
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from rl_compat.planning.memory.budget import phase_budgets
from rl_compat.planning.memory.request import Levers, Sizes
from rl_compat.rollout.native.engine import NativeEngine, graph_width
from rl_compat.rollout.types import SamplingParams

SAMPLED = SamplingParams(max_new_tokens=20, seed=3)
FILTERS = {
    "top k": {"top_k": 5},
    "top p": {"top_p": 0.7},
    "min p": {"min_p": 0.1},
    "all": {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "raw_logprobs": True},
}


def tokens(engine: NativeEngine) -> list[list[tuple[int, ...]]]:
    return [[response.token_ids for response in group] for group in engine.generate(PROMPTS, SAMPLED, group_size=2)]


def test_a_ladder_of_widths_holds_few_graphs() -> None:
    assert len({graph_width(active, 128) for active in range(1, 129)}) == 12
    assert all(active <= graph_width(active, 128) for active in range(1, 129))


@pytest.mark.gpu
@pytest.mark.parametrize("filters", FILTERS)
def test_captured_draws_through_filters_are_those_of_the_cpu(llama: nn.Module, filters: str) -> None:
    params = SamplingParams(max_new_tokens=20, seed=3, temperature=1.2, **FILTERS[filters])
    expected = build("native", llama).generate(PROMPTS, params, group_size=4)
    groups = build("native", llama.to("cuda"), cuda_graphs=True).generate(PROMPTS, params, group_size=4)
    assert [[r.token_ids for r in group] for group in groups] == [[r.token_ids for r in group] for group in expected]


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["fp32", "bf16", "adapters"])
def test_an_optimizer_step_leaves_the_graphs_valid(llama: nn.Module, way: str) -> None:
    model: nn.Module = llama.to("cuda")
    if way == "adapters":
        torch.manual_seed(4)
        model = get_peft_model(llama, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
    changes = {"compute_dtype": "bf16"} if way == "bf16" else {}
    engine = build("native", model, cuda_graphs=True, **changes)
    seen = [tokens(engine)]
    graphs = dict(engine._graphs._graphs)
    assert graphs
    for _ in range(2):
        ids = torch.arange(10, 60, device="cuda")[None]
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        load_newest(engine)
        seen.append(tokens(engine))
        assert tokens(build("native", model, cuda_graphs=True, **changes)) == seen[-1] != seen[-2]
        assert all(engine._graphs._graphs[key] is graph for key, graph in graphs.items())


@pytest.mark.gpu
@pytest.mark.parametrize("compute_dtype", ["fp32", "bf16"])
def test_generating_stays_within_the_planned_memory(compute_dtype: str) -> None:
    """Four blocks at the width and vocabulary of Qwen2.5-0.5B: many batch sizes, lengths and so graphs."""
    shape = replace(QWEN_05B, num_layers=4)
    request = changed(REQUEST, models={"actor": shape}, rollout_dtype=compute_dtype, repeat_kv=False)
    sizes = Sizes(micro_batch_tokens=2048, logprob_chunk_tokens=1024, max_num_seqs=48, max_prefill_tokens=4096)
    budget = next(found for found in phase_budgets(request, Levers(), sizes) if found.phase == "rollout")
    planned = budget.total_bytes - sum(budget.items[name] for name in ("context", "actor weights", "actor optimizer"))
    torch.manual_seed(0)
    model = small_qwen(shape.num_layers)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    engine = build(
        "native", model, cuda_graphs=True, compute_dtype=compute_dtype, max_num_seqs=48, max_prefill_tokens=4096
    )
    assert isinstance(engine, NativeEngine)
    for count, length in ((1, 5), (48, 256), (7, 100), (60, 200), (33, 256)):
        prompts = [[(7 * row + place) % 9000 for place in range(length)] for row in range(count)]
        engine.generate(prompts, SamplingParams(max_new_tokens=256 if count == 60 else 40, seed=count))
    assert torch.cuda.max_memory_reserved() - before < planned
    engine.sleep()
    assert torch.cuda.memory_reserved() - before < 128 * 2**20


def small_qwen(num_layers: int) -> nn.Module:
    config = Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=num_layers,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    with torch.device("cuda"):
        return Qwen2ForCausalLM(config).eval()
