"""The native engine's own parts: packing, memory, lower-precision copies and adapters."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from peft import LoraConfig, get_peft_model
from rollout.conftest import PROMPTS, build, forward_logprobs, load_newest, plain_generate
from torch import nn

from rl_compat.errors import NotFiniteError, RLCompatError
from rl_compat.planning.types import RolloutPlan
from rl_compat.rollout.native.engine import NativeEngine, graph_width, pack, shared_prefix
from rl_compat.rollout.session import RolloutSession
from rl_compat.rollout.types import SamplingParams

GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)


def with_adapters(model: nn.Module) -> nn.Module:
    torch.manual_seed(4)
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return adapted


def test_prompts_are_packed_by_length_within_the_token_budget() -> None:
    lengths = {0: 3, 1: 9, 2: 4, 3: 8, 4: 40}
    assert pack(lengths, max_tokens=18) == [[4], [1, 3], [2, 0]]
    assert pack({}, max_tokens=18) == []


@pytest.mark.parametrize("max_num_seqs", [3, 8, 12])
def test_a_prompt_is_computed_once_for_its_group_and_for_repeated_prompts(llama: nn.Module, max_num_seqs: int) -> None:
    """With fewer slots than responses, those that come later copy the slot of one that still runs, if one does."""
    prompt, other = tuple(range(10, 30)), (41, 42, 43)
    params = SamplingParams(max_new_tokens=30, seed=3, stop_token_ids=tuple(range(0, 90, 9)))
    expected = [build("native", llama).generate([ids], params, group_size=8)[0] for ids in (prompt, other)]
    sizes: list[int] = []
    llama.get_input_embeddings().register_forward_hook(lambda module, given, output: sizes.append(given[0].numel()))
    engine = build("native", llama, max_num_seqs=max_num_seqs)
    sizes.clear()
    groups = engine.generate([prompt, other, prompt], params, group_size=4)
    tokens = [[response.token_ids for response in group] for group in groups]
    assert [*tokens[0], *tokens[2]] == [response.token_ids for response in expected[0]]
    assert tokens[1] == [response.token_ids for response in expected[1][:4]]
    assert sum(size >= len(prompt) - 1 for size in sizes) == 1


def test_large_packs_are_closed_before_padding_exceeds_an_eighth() -> None:
    groups = pack(dict(enumerate([200, 190, 180, 170, 100, 90, 80, 10])), max_tokens=10_000)
    assert groups == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_start_that_all_prompts_share_is_counted_without_any_last_token() -> None:
    start = list(range(20))
    assert shared_prefix([[*start, 5, 6], [*start, 7]]) == 20
    assert shared_prefix([[*start, 5, 6], tuple(start)]) == 19
    assert shared_prefix([[*start, 5], [*start, 5]]) == 0
    assert shared_prefix([[1, 2, 3], [1, 2, 4]]) == 0


def test_captured_widths_are_few_and_never_above_the_slots() -> None:
    assert [graph_width(n, 64) for n in (1, 2, 3, 5, 9, 16, 17, 33, 64)] == [1, 2, 4, 8, 16, 16, 32, 48, 64]
    assert graph_width(23, 24) == 24


def test_the_cache_is_kept_between_calls_and_given_back_by_sleep(llama: nn.Module) -> None:
    engine = build("native", llama)
    engine.generate(PROMPTS, GREEDY)
    decoder = engine._decoder
    engine.generate(PROMPTS[:2], GREEDY)
    assert engine._decoder is decoder
    engine.sleep()
    assert engine._decoder is None


def test_fp32_shares_the_trainers_tensors(llama: nn.Module) -> None:
    engine = build("native", llama)
    engine.generate(PROMPTS[:1], GREEDY)
    assert engine._weights.model is llama


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["native", "transformers"])
def test_sleep_frees_at_once_without_waiting_for_the_garbage_collector(
    name: str, device: str, llama: nn.Module
) -> None:
    engine = build(name, llama.to(device), compute_dtype="fp16", cuda_graphs=device == "cuda")
    gc.collect()
    gc.disable()
    try:
        engine.generate(PROMPTS, GREEDY)
        weight = weakref.ref(engine._weights.model.model.layers[0].mlp.up_proj.weight)
        decoder = weakref.ref(engine._decoder) if name == "native" else None
        assert weight() is not None
        engine.sleep()
        assert weight() is None
        assert decoder is None or decoder() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("compute_dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ["native", "transformers"])
def test_a_half_copy_keeps_ties_and_its_addresses_and_follows_the_weights(
    name: str, compute_dtype: str, llama: nn.Module
) -> None:
    engine = build(name, llama, compute_dtype=compute_dtype)
    first = engine.generate(PROMPTS, GREEDY)
    copied = engine._weights.model
    assert copied is not llama
    layers = [p for name, p in copied.named_parameters() if "embed" not in name and p.dim() == 2]
    assert {p.dtype for p in layers} == {{"bf16": torch.bfloat16, "fp16": torch.float16}[compute_dtype]}
    assert {p.dtype for p in copied.parameters() if p.dim() == 1} == {torch.float32}
    assert copied.get_output_embeddings().weight is llama.get_input_embeddings().weight
    assert copied.get_input_embeddings().weight is llama.get_input_embeddings().weight
    addresses = [p.data_ptr() for p in copied.parameters()]
    with torch.no_grad():
        for parameter in llama.model.layers.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    assert engine.generate(PROMPTS, GREEDY) == first
    load_newest(engine)
    second = engine.generate(PROMPTS, GREEDY)
    assert second != first
    assert [p.data_ptr() for p in copied.parameters()] == addresses
    assert {p.dtype for p in llama.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", ["native", "transformers"])
def test_activations_beyond_the_range_of_fp16_are_an_error_and_harmless_in_fp32(name: str, llama: nn.Module) -> None:
    with torch.no_grad():
        for layer in llama.model.layers:
            layer.mlp.up_proj.weight.mul_(1e4)
            layer.mlp.down_proj.weight.mul_(1e-4)
            layer.mlp.gate_proj.weight.mul_(1e3)
    build(name, llama).generate(PROMPTS, GREEDY)
    with pytest.raises(RLCompatError) as overflow:
        build(name, llama, compute_dtype="fp16").generate(PROMPTS, GREEDY)
    assert "`fp16`" in overflow.value.message
    assert "`plan.rollout_dtype=fp32`" in str(overflow.value.hint)
    assert "`plan.rollout_dtype=fp32`" in str(overflow.value.hint)


def test_logprobs_of_a_bf16_copy_are_near_those_of_the_fp32_weights(llama: nn.Module) -> None:
    response = build("native", llama, compute_dtype="bf16").generate(PROMPTS[:1], GREEDY)[0][0]
    expected = forward_logprobs(llama, PROMPTS[0], response.token_ids, 1.0)
    torch.testing.assert_close(torch.tensor(response.logprobs), expected, atol=0.2, rtol=0)


@pytest.mark.parametrize("name", ["native", "transformers"])
def test_adapters_are_applied_and_seen_when_they_change(name: str, llama: nn.Module) -> None:
    base = [plain_generate(llama, prompt, 12) for prompt in PROMPTS]
    adapted = with_adapters(llama)
    engine = build(name, adapted)
    for _ in range(2):
        expected = [plain_generate(adapted.get_base_model(), prompt, 12) for prompt in PROMPTS]
        tokens = [list(g[0].token_ids) for g in engine.generate(PROMPTS, GREEDY)]
        assert tokens == expected != base
        with torch.no_grad():
            for parameter in adapted.parameters():
                if parameter.requires_grad:
                    parameter.mul_(-1.5)
        load_newest(engine)


@pytest.mark.parametrize("compute_dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["native", "transformers"])
def test_adapters_that_are_switched_off_merged_or_exchanged_between_calls_are_noticed(
    name: str, compute_dtype: str, llama: nn.Module
) -> None:
    def tokens(engine: RolloutSession) -> list[tuple[int, ...]]:
        return [group[0].token_ids for group in engine.generate(PROMPTS, GREEDY)]

    base = tokens(build(name, llama, compute_dtype=compute_dtype))
    adapted = with_adapters(llama)
    engine = build(name, adapted, compute_dtype=compute_dtype)
    first = tokens(engine)
    with adapted.disable_adapter():
        assert tokens(engine) == base != first
    assert tokens(engine) == first
    adapted.add_adapter("other", LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    adapted.set_adapter("other")
    assert tokens(engine) == base
    adapted.base_model.set_adapter(["default", "other"])
    assert tokens(engine) == first
    adapted.set_adapter("default")
    adapted.merge_adapter()
    assert tokens(engine) == first
    adapted.unmerge_adapter()
    assert tokens(engine) == first


@pytest.mark.parametrize("name", ["native", "transformers"])
def test_a_lower_copy_of_an_adapted_model_has_the_adapters_merged(name: str, llama: nn.Module) -> None:
    adapted = with_adapters(llama)
    engine = build(name, adapted, compute_dtype="bf16")
    engine.generate(PROMPTS[:1], GREEDY)
    copied = engine._weights.model
    assert not [n for n, _ in copied.named_parameters() if "lora" in n]
    merged = adapted.merge_and_unload()
    for (name_, weight), expected in zip(copied.named_parameters(), merged.parameters(), strict=True):
        torch.testing.assert_close(weight, expected.to(weight.dtype), msg=name_)


@pytest.mark.parametrize("name", ["native", "transformers"])
def test_packed_linears_change_no_token_and_follow_the_weights(name: str, qwen2: nn.Module) -> None:
    engine = build(name, qwen2, packed_linears=True)
    for _ in range(2):
        groups = engine.generate(PROMPTS, GREEDY)
        assert [list(g[0].token_ids) for g in groups] == [plain_generate(qwen2, prompt, 12) for prompt in PROMPTS]
        expected = forward_logprobs(qwen2, PROMPTS[0], groups[0][0].token_ids, 1.0)
        torch.testing.assert_close(torch.tensor(groups[0][0].logprobs), expected, atol=1e-4, rtol=0)
        with torch.no_grad():
            for parameter in qwen2.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        load_newest(engine)


def test_packed_linears_leave_the_layers_to_training(qwen2: nn.Module) -> None:
    build("native", qwen2, packed_linears=True).generate(PROMPTS, GREEDY)
    qwen2(input_ids=torch.tensor([[11, 12]])).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in qwen2.parameters())


def test_packed_linears_apply_adapters(llama: nn.Module) -> None:
    adapted = with_adapters(llama)
    groups = build("native", adapted, packed_linears=True).generate(PROMPTS, GREEDY)
    expected = [plain_generate(adapted.get_base_model(), prompt, 12) for prompt in PROMPTS]
    assert [list(g[0].token_ids) for g in groups] == expected


def test_a_row_that_went_to_nan_does_not_reach_the_next_call(llama: nn.Module) -> None:
    engine = build("native", llama)
    expected = engine.generate(PROMPTS, GREEDY)
    with torch.no_grad():
        layer = llama.model.layers[0].self_attn.v_proj.weight
        kept = layer.clone()
        layer.fill_(torch.nan)
        with pytest.raises(NotFiniteError):
            engine.generate([list(range(10, 30))] * 4, GREEDY)
        layer.copy_(kept)
    assert engine.generate(PROMPTS, GREEDY) == expected


def test_a_device_without_cuda_graphs_goes_on_without_them_and_says_so(
    llama: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = [[11 + i, 12, 13 + i] * (1 + i % 3) for i in range(12)]
    params = SamplingParams(max_new_tokens=20, temperature=0.0, stop_token_ids=tuple(range(0, 90, 9)))
    plain = build("native", llama, max_num_seqs=5).generate(prompts, params)
    engine = build("native", llama, max_num_seqs=5, cuda_graphs=True)
    groups = engine.generate(prompts, params)
    assert [g[0].token_ids for g in groups] == [g[0].token_ids for g in plain]
    assert caplog.text.count("CUDA graphs") == 1


@pytest.mark.parametrize("stops", [(), tuple(range(0, 90, 9))])
@pytest.mark.parametrize("check_every", [2, 5, 8])
def test_tokens_looked_at_several_at_a_time_are_the_same(
    llama: nn.Module, stops: tuple[int, ...], check_every: int
) -> None:
    prompts = [[11 + i, 12, 13 + i] * (1 + i % 3) for i in range(12)]
    params = SamplingParams(max_new_tokens=23, seed=3, stop_token_ids=stops, raw_logprobs=True, temperature=0.8)
    plan = RolloutPlan(engine="native", compute_dtype="fp32", max_num_seqs=5, max_prefill_tokens=32, cuda_graphs=True)
    expected = build("native", llama, max_num_seqs=5).generate(prompts, params, group_size=2)
    engine = NativeEngine(llama, plan=plan, check_every=check_every)
    for _ in range(2):
        groups = engine.generate(prompts, params, group_size=2)
        for ours, theirs in zip((r for g in groups for r in g), (r for g in expected for r in g), strict=True):
            assert (ours.token_ids, ours.finish_reason) == (theirs.token_ids, theirs.finish_reason)
            torch.testing.assert_close(torch.tensor(ours.logprobs), torch.tensor(theirs.logprobs), atol=1e-5, rtol=0)
            torch.testing.assert_close(
                torch.tensor(ours.raw_logprobs), torch.tensor(theirs.raw_logprobs), atol=1e-5, rtol=0
            )


@pytest.mark.gpu
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_captured_steps_give_the_tokens_of_ungraphed_ones(llama: nn.Module, temperature: float) -> None:
    llama.to("cuda")
    params = SamplingParams(max_new_tokens=40, temperature=temperature, stop_token_ids=(1, 5, 9), seed=3)
    prompts = [[11 + i, 12, 13 + i] * (1 + i % 3) for i in range(12)]
    graphed = build("native", llama, cuda_graphs=True)
    for _ in range(2):
        first = graphed.generate(prompts, params, group_size=2)
        assert first == graphed.generate(prompts, params, group_size=2)
        if temperature == 0:
            plain = build("native", llama).generate(prompts, params, group_size=2)
            assert [[r.token_ids for r in g] for g in first] == [[r.token_ids for r in g] for g in plain]
        with torch.no_grad():
            for parameter in llama.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))


@pytest.mark.gpu
def test_weights_moved_away_and_back_are_captured_anew(llama: nn.Module) -> None:
    llama.to("cuda")
    engine = build("native", llama, cuda_graphs=True)
    before = engine.generate(PROMPTS, GREEDY)
    llama.to("cpu")
    hold = [torch.full_like(parameter, 7.0, device="cuda") for parameter in llama.parameters()]
    llama.to("cuda")
    assert engine.generate(PROMPTS, GREEDY) == before
    assert len(hold) > 0
