"""What all engines promise, on several model families."""

from __future__ import annotations

import gc

import pytest
import torch
from rollout.conftest import PROMPTS, build, forward_logprobs, load_newest, plain_generate
from torch import nn

from rl_compat.errors import DataError
from rl_compat.rollout.session import RolloutSession
from rl_compat.rollout.types import SamplingParams

GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)
SAMPLED = SamplingParams(max_new_tokens=12, seed=7)


def bytes_of_tensors() -> int:
    """Of all storages on the CPU that a tensor of this process holds."""
    gc.collect()
    tensors = [item for item in gc.get_objects() if type(item) in (torch.Tensor, nn.Parameter)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.device.type == "cpu"}
    return sum(storages.values())


def test_greedy_tokens_of_a_batch_equal_plain_generate_one_by_one(engine_name: str, model: nn.Module) -> None:
    """A-GEN-02, A-GEN-03: padding is the engine's own and changes no token."""
    groups = build(engine_name, model).generate(PROMPTS, GREEDY)
    expected = [plain_generate(model, prompt, 12) for prompt in PROMPTS]
    assert [list(group[0].token_ids) for group in groups] == expected


def test_a_model_of_every_family_here_runs_natively(model: nn.Module) -> None:
    assert type(build("native", model)).__name__ == "NativeEngine"


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.7])
def test_logprobs_equal_a_training_forward_at_that_temperature(
    engine_name: str, model: nn.Module, temperature: float
) -> None:
    """A-ALG-06."""
    params = SamplingParams(max_new_tokens=12, temperature=temperature, seed=1)
    groups = build(engine_name, model).generate(PROMPTS, params, group_size=2)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for response in group:
            expected = forward_logprobs(model, prompt, response.token_ids, temperature)
            torch.testing.assert_close(torch.tensor(response.logprobs), expected, atol=1e-4, rtol=0)


def test_greedy_logprobs_are_those_at_temperature_one(engine: RolloutSession, llama: nn.Module) -> None:
    response = engine.generate(PROMPTS[:1], GREEDY)[0][0]
    expected = forward_logprobs(llama, PROMPTS[0], response.token_ids, 1.0)
    torch.testing.assert_close(torch.tensor(response.logprobs), expected, atol=1e-4, rtol=0)


def test_filters_change_the_tokens_but_not_the_logprobs_of_them(engine: RolloutSession, llama: nn.Module) -> None:
    params = SamplingParams(max_new_tokens=12, top_k=3, top_p=0.7, seed=1)
    response = engine.generate(PROMPTS[:1], params)[0][0]
    expected = forward_logprobs(llama, PROMPTS[0], response.token_ids, 1.0)
    torch.testing.assert_close(torch.tensor(response.logprobs), expected, atol=1e-4, rtol=0)


def test_the_same_seed_gives_the_same_responses_and_another_seed_others(engine: RolloutSession) -> None:
    first = engine.generate(PROMPTS, SAMPLED, group_size=2)
    assert engine.generate(PROMPTS, SAMPLED, group_size=2) == first
    assert engine.generate(PROMPTS, SamplingParams(max_new_tokens=12, seed=8), group_size=2) != first


def test_without_a_seed_torchs_generator_decides(engine: RolloutSession) -> None:
    params = SamplingParams(max_new_tokens=12)
    torch.manual_seed(5)
    first, second = engine.generate(PROMPTS, params), engine.generate(PROMPTS, params)
    torch.manual_seed(5)
    assert engine.generate(PROMPTS, params) == first
    assert second != first


def test_a_seeded_call_leaves_torchs_generator_alone(engine: RolloutSession) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    engine.generate(PROMPTS, SAMPLED)
    assert torch.equal(torch.get_rng_state(), before)


def test_responses_of_a_group_differ_and_keep_the_order_of_the_prompts(engine: RolloutSession) -> None:
    groups = engine.generate(PROMPTS, SAMPLED, group_size=3)
    assert [len(group) for group in groups] == [3] * len(PROMPTS)
    assert all(len({response.token_ids for response in group}) > 1 for group in groups)


def test_greedy_responses_of_a_group_are_all_that_of_one(engine: RolloutSession) -> None:
    alone = engine.generate(PROMPTS, GREEDY)
    for group, (single,) in zip(engine.generate(PROMPTS, GREEDY, group_size=3), alone, strict=True):
        assert {response.token_ids for response in group} == {single.token_ids}


def test_the_order_of_prompts_changes_no_greedy_response(engine: RolloutSession) -> None:
    forward = engine.generate(PROMPTS, GREEDY)
    backward = engine.generate(PROMPTS[::-1], GREEDY)
    assert [g[0].token_ids for g in forward] == [g[0].token_ids for g in backward[::-1]]


@pytest.mark.parametrize("max_num_seqs", [1, 3])
def test_more_responses_than_slots_give_the_same_greedy_responses(
    engine_name: str, llama: nn.Module, max_num_seqs: int
) -> None:
    wide = build(engine_name, llama).generate(PROMPTS, GREEDY, group_size=2)
    narrow = build(engine_name, llama, max_num_seqs=max_num_seqs, max_prefill_tokens=4)
    groups = narrow.generate(PROMPTS, GREEDY, group_size=2)
    assert [[r.token_ids for r in group] for group in groups] == [[r.token_ids for r in group] for group in wide]


def test_slots_refilled_after_stops_give_the_responses_of_each_prompt_alone(engine_name: str, llama: nn.Module) -> None:
    prompts = [[11 + i, 12, 13 + i] * (1 + i % 3) for i in range(12)]
    params = SamplingParams(max_new_tokens=20, temperature=0.0, stop_token_ids=tuple(range(0, 90, 9)))
    together = build(engine_name, llama, max_num_seqs=4).generate(prompts, params)
    alone = [build(engine_name, llama).generate([prompt], params)[0] for prompt in prompts]
    assert [g[0].token_ids for g in together] == [g[0].token_ids for g in alone]
    assert len({len(g[0].token_ids) for g in together}) > 2


def test_any_of_several_stop_tokens_ends_a_response_and_belongs_to_it(engine: RolloutSession) -> None:
    """A-GEN-04."""
    free = engine.generate(PROMPTS[:1], GREEDY)[0][0]
    for position in (0, 3, 7):
        stop = free.token_ids[position]
        end = free.token_ids.index(stop) + 1
        params = SamplingParams(max_new_tokens=12, temperature=0.0, stop_token_ids=(96, stop, 95))
        response = engine.generate(PROMPTS[:1], params)[0][0]
        assert (response.token_ids, response.finish_reason) == (free.token_ids[:end], "stop")
        assert len(response.logprobs) == end


def test_a_response_cut_at_the_limit_has_no_end_token_and_says_so(engine: RolloutSession) -> None:
    """A-GEN-07."""
    free = engine.generate(PROMPTS[:1], GREEDY)[0][0]
    absent = next(i for i in range(90) if i not in free.token_ids)
    params = SamplingParams(max_new_tokens=4, temperature=0.0, stop_token_ids=(absent,))
    response = engine.generate(PROMPTS[:1], params)[0][0]
    assert (response.token_ids, response.finish_reason) == (free.token_ids[:4], "length")


def test_an_end_token_as_the_last_token_allowed_is_a_stop(engine: RolloutSession) -> None:
    """A-GEN-07."""
    free = engine.generate(PROMPTS[1:2], GREEDY)[0][0]
    end = next(i for i in range(1, 12) if free.token_ids[i] not in free.token_ids[:i])
    params = SamplingParams(max_new_tokens=end + 1, temperature=0.0, stop_token_ids=(free.token_ids[end],))
    response = engine.generate(PROMPTS[1:2], params)[0][0]
    assert (len(response.token_ids), response.finish_reason) == (end + 1, "stop")


def test_the_padding_token_can_be_drawn_without_ending_a_response(engine_name: str, llama: nn.Module) -> None:
    with torch.no_grad():
        llama.get_output_embeddings().weight[0] = llama.get_output_embeddings().weight.mean(0)
    params = SamplingParams(max_new_tokens=200, temperature=3.0, stop_token_ids=(1,), seed=2)
    groups = build(engine_name, llama).generate(PROMPTS, params, group_size=2)
    drawn = [r for group in groups for r in group if 0 in r.token_ids[:-1]]
    assert drawn
    assert all(r.token_ids[-1] == 1 or r.finish_reason == "length" for r in drawn)


def test_one_new_token(engine: RolloutSession) -> None:
    params = SamplingParams(max_new_tokens=1, temperature=0.0)
    groups = engine.generate(PROMPTS, params)
    assert [(len(g[0].token_ids), g[0].finish_reason) for g in groups] == [(1, "length")] * len(PROMPTS)


def test_no_prompts_give_no_responses(engine: RolloutSession) -> None:
    assert engine.generate([], GREEDY) == []


def test_an_empty_prompt_is_named(engine: RolloutSession) -> None:
    with pytest.raises(DataError) as empty:
        engine.generate([[11], []], GREEDY)
    assert "prompt 1" in str(empty.value)


def test_an_id_without_an_embedding_is_named(engine: RolloutSession) -> None:
    with pytest.raises(DataError) as unknown:
        engine.generate([[11, 5000]], GREEDY)
    assert "prompt 0" in str(unknown.value)
    assert "5000" in str(unknown.value)


def test_changed_weights_are_seen_by_the_next_call(engine: RolloutSession, llama: nn.Module) -> None:
    before = engine.generate(PROMPTS, GREEDY)
    with torch.no_grad():
        for parameter in llama.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    load_newest(engine)
    after = engine.generate(PROMPTS, GREEDY)
    assert after != before
    assert [list(g[0].token_ids) for g in after] == [plain_generate(llama, prompt, 12) for prompt in PROMPTS]


def test_generation_works_after_sleep(engine: RolloutSession) -> None:
    before = engine.generate(PROMPTS, SAMPLED)
    engine.sleep()
    assert engine.generate(PROMPTS, SAMPLED) == before
    engine.sleep()
    engine.sleep()
    assert engine.generate(PROMPTS, SAMPLED) == before


def test_sleep_gives_back_the_memory_that_the_engine_took(engine_name: str, llama: nn.Module) -> None:
    """A copy of the weights, and the cache. On a CPU vLLM keeps its embedding and norms."""
    before = bytes_of_tensors()
    changes = {} if engine_name == "vllm" else {"compute_dtype": "bf16"}
    engine = build(engine_name, llama, **changes)
    for _ in range(2):
        engine.generate(PROMPTS, SAMPLED, group_size=2)
        awake = bytes_of_tensors() - before
        engine.sleep()
        asleep = bytes_of_tensors() - before
        assert awake > 50_000
        assert asleep < (awake // 2 if engine_name == "vllm" else 1000)


def test_an_earlier_longer_call_changes_nothing(engine: RolloutSession) -> None:
    before = engine.generate(PROMPTS, SAMPLED)
    engine.generate([list(range(10, 60))] * 3, SamplingParams(max_new_tokens=40, seed=1), group_size=2)
    assert engine.generate(PROMPTS, SAMPLED) == before


def test_ids_beyond_the_tokenizer_are_never_drawn_and_logprobs_stay_whole(engine_name: str, llama: nn.Module) -> None:
    """A-GEN-05."""
    engine = build(engine_name, llama, num_valid_tokens=50)
    for temperature in (0.0, 1.0, 5.0):
        params = SamplingParams(max_new_tokens=30, temperature=temperature, seed=1)
        for prompt, (response,) in zip(PROMPTS, engine.generate(PROMPTS, params), strict=True):
            assert max(response.token_ids) < 50
            expected = forward_logprobs(llama, prompt, response.token_ids, temperature or 1.0)
            torch.testing.assert_close(torch.tensor(response.logprobs), expected, atol=1e-4, rtol=0)


def test_training_mode_and_gradients_are_left_as_they_were(engine: RolloutSession, llama: nn.Module) -> None:
    expected = [plain_generate(llama, prompt, 12) for prompt in PROMPTS]
    llama.train()
    llama.model.layers[0].eval()
    getattr(llama, "activation_checkpointing_enable", llama.gradient_checkpointing_enable)()
    llama.config.use_cache = False
    attention = llama.config._attn_implementation
    groups = engine.generate(PROMPTS, GREEDY)
    assert [list(g[0].token_ids) for g in groups] == expected
    assert llama.training and llama.model.layers[1].training and not llama.model.layers[0].training
    assert all(parameter.requires_grad for parameter in llama.parameters())
    assert llama.config._attn_implementation == attention
    llama(input_ids=torch.tensor([[11, 12]])).logits.sum().backward()


def test_dropout_is_off_while_generating(engine: RolloutSession, llama: nn.Module) -> None:
    expected = engine.generate(PROMPTS, GREEDY)
    for layer in llama.model.layers:
        layer.self_attn.attention_dropout = 0.9
    llama.train()
    assert engine.generate(PROMPTS, GREEDY) == expected


def test_progress_counts_up_to_all_responses(engine_name: str, llama: nn.Module) -> None:
    seen: list[int] = []
    params = SamplingParams(max_new_tokens=20, stop_token_ids=tuple(range(0, 90, 9)), seed=1)
    build(engine_name, llama, max_num_seqs=3).generate(PROMPTS, params, group_size=2, on_progress=seen.append)
    assert seen == sorted(set(seen))
    assert seen[-1] == 8


def test_a_model_in_eager_attention_gives_the_same_tokens(engine_name: str, model: nn.Module) -> None:
    expected = [plain_generate(model, prompt, 12) for prompt in PROMPTS]
    model.set_attn_implementation("eager")
    groups = build(engine_name, model).generate(PROMPTS, GREEDY)
    assert [list(group[0].token_ids) for group in groups] == expected
