"""vLLM itself, on a CPU, beyond the contract of every engine: weights, sleep, seeds, limits and faults."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import Any

import pytest
import torch
from fakes.part_settings import lora_of
from rollout.conftest import PROMPTS, build, forward_logprobs, load_newest, plain_generate, qwen3
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from rl_compat.errors import ConfigError, DataError, DoesNotFitError, ModelError, RLCompatError
from rl_compat.models.lora import add_adapters
from rl_compat.rollout.types import Response, SamplingParams
from rl_compat.rollout.vllm.engine import VllmEngine

pytestmark = pytest.mark.vllm

GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)
SAMPLED = SamplingParams(max_new_tokens=12, seed=7, temperature=1.3, top_p=0.95, top_k=30, min_p=0.02)


def tokens(groups: list[list[Response]]) -> list[list[tuple[int, ...]]]:
    return [[response.token_ids for response in group] for group in groups]


def as_text(token_ids: list[int]) -> str:
    """One character for each token."""
    return "".join(chr(200 + token) for token in token_ids)


def shake(model: nn.Module) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))


def held_bytes(engine: VllmEngine) -> int:
    """Bytes of the cache that vLLM keeps on the CPU."""
    (sizes,) = engine._engine.collective_rpc(
        lambda worker: [cache.untyped_storage().nbytes() for cache in worker.model_runner.kv_caches]
    )
    return sum(sizes)


def alive(worker: Any) -> list[weakref.ref[Any]]:
    """What an engine of vLLM's holds, to be asked whether it is still there."""
    runner = worker.model_runner
    return [weakref.ref(item) for item in (worker, runner, runner.get_model(), *runner.kv_caches)]


def test_the_same_seed_draws_what_the_native_engine_draws(llama: nn.Module) -> None:
    expected = build("native", llama).generate(PROMPTS, SAMPLED, group_size=3)
    assert tokens(build("vllm", llama).generate(PROMPTS, SAMPLED, group_size=3)) == tokens(expected)


def test_what_else_is_in_the_batch_changes_no_draw(llama: nn.Module) -> None:
    engine = build("vllm", llama, max_num_seqs=3)
    together = tokens(engine.generate(PROMPTS, SAMPLED, group_size=2))
    assert tokens(build("vllm", llama).generate(PROMPTS, SAMPLED, group_size=2)) == together
    assert tokens(engine.generate(PROMPTS[:1], SAMPLED, group_size=2)) == together[:1]


def test_a_seed_with_a_prompt_read_in_pieces_works(llama: nn.Module) -> None:
    """vLLM 0.32 dies of seeds of its own here: `CPU Generator does not use offset`."""
    long = [[11 + i % 60 for i in range(150)], [31, 32]]
    narrow = build("vllm", llama, max_prefill_tokens=16, max_num_seqs=4)
    pieces = narrow.generate(long, SAMPLED, group_size=2)
    assert pieces == narrow.generate(long, SAMPLED, group_size=2)
    for prompt, group in zip(long, pieces, strict=True):
        for response in group:
            expected = forward_logprobs(llama, prompt, response.token_ids, 1.3)
            torch.testing.assert_close(torch.tensor(response.logprobs), expected, atol=1e-4, rtol=0)


def test_responses_that_must_wait_for_the_cache_are_pushed_out_and_come_back_the_same(llama: nn.Module) -> None:
    params = SamplingParams(max_new_tokens=200, seed=2)
    tight = build("vllm", llama, kv_cache_bytes=2 * 2 * 32 * 4 * 128 * 9, max_model_len=512)
    plenty = build("vllm", llama, max_model_len=512)
    assert tokens(tight.generate(PROMPTS, params, group_size=2)) == tokens(
        plenty.generate(PROMPTS, params, group_size=2)
    )


def test_raw_logprobs_are_those_at_temperature_one(llama: nn.Module) -> None:
    params = SamplingParams(max_new_tokens=8, seed=1, temperature=0.5, raw_logprobs=True)
    response = build("vllm", llama).generate(PROMPTS[:1], params)[0][0]
    for values, temperature in ((response.logprobs, 0.5), (response.raw_logprobs, 1.0)):
        expected = forward_logprobs(llama, PROMPTS[0], response.token_ids, temperature)
        torch.testing.assert_close(torch.tensor(values), expected, atol=1e-4, rtol=0)


def test_a_string_ends_a_response_with_the_token_that_completes_it(llama: nn.Module) -> None:
    free = build("native", llama).generate(PROMPTS[:2], GREEDY)[0][0]
    string = as_text(list(free.token_ids[4:6]))
    assert as_text(list(free.token_ids)).index(string) == 4
    engine = VllmEngine(llama, plan=build("vllm", llama)._plan, decode=as_text)
    ended = SamplingParams(max_new_tokens=12, temperature=0.0, stop_strings=(string, "absent"))

    first, second = engine.generate(PROMPTS[:2], ended)

    assert (first[0].token_ids, first[0].finish_reason) == (free.token_ids[:6], "stop")
    assert (len(first[0].logprobs), second[0].finish_reason) == (6, "length")
    assert tokens(engine.generate(PROMPTS[:1], GREEDY)) == [[free.token_ids]]


def test_stop_strings_need_a_tokenizer(llama: nn.Module) -> None:
    with pytest.raises(ConfigError):
        build("vllm", llama).generate(PROMPTS, SamplingParams(max_new_tokens=2, stop_strings=("x",)))


@pytest.mark.parametrize("by_progress", [True, False])
def test_an_aborted_call_returns_what_there_is_and_the_next_is_whole(llama: nn.Module, by_progress: bool) -> None:
    engine = build("vllm", llama, max_num_seqs=2)
    whole = tokens(engine.generate(PROMPTS, GREEDY))

    def stop(count: int) -> bool | None:
        if not by_progress:
            threading.Thread(target=engine.abort).start()
            threading.Event().wait(0.05)
        return False if by_progress else None

    groups = engine.generate(PROMPTS, GREEDY, on_progress=stop)

    reasons = [group[0].finish_reason for group in groups]
    assert reasons.count("length") == 2 and reasons.count("abort") == 2
    for (response,), (full,) in zip(groups, whole, strict=True):
        assert response.token_ids == full[: len(response.token_ids)]
        assert len(response.logprobs) == len(response.token_ids)
    assert tokens(engine.generate(PROMPTS, GREEDY)) == whole


def test_an_error_of_the_callers_leaves_no_request_behind(llama: nn.Module) -> None:
    engine = build("vllm", llama, max_num_seqs=2)
    whole = engine.generate(PROMPTS, GREEDY)

    def fail(count: int) -> bool | None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, GREEDY, on_progress=fail)
    assert engine.generate(PROMPTS, GREEDY) == whole


def test_adapters_are_merged_on_the_way_and_the_base_stays(llama: nn.Module) -> None:
    add_adapters(llama, lora_of(rank=4, alpha=64.0))
    engine = build("vllm", llama)
    before = engine.generate(PROMPTS, GREEDY)
    assert tokens(before) == [[tuple(plain_generate(llama, prompt, 12))] for prompt in PROMPTS]
    base = {name: value.clone() for name, value in llama.named_parameters() if "lora_" not in name}
    with torch.no_grad():
        for name, parameter in llama.named_parameters():
            if "lora_" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))

    load_newest(engine)

    after = engine.generate(PROMPTS, GREEDY)
    assert tokens(after) == [[tuple(plain_generate(llama, prompt, 12))] for prompt in PROMPTS]
    assert after != before
    assert all(torch.equal(value, base[name]) for name, value in llama.named_parameters() if name in base)


def test_weights_that_change_while_the_engine_sleeps_are_there_when_it_wakes(llama: nn.Module) -> None:
    engine = build("vllm", llama)
    engine.sleep()
    shake(llama)
    load_newest(engine)
    expected = [[tuple(plain_generate(llama, prompt, 12))] for prompt in PROMPTS]
    assert tokens(engine.generate(PROMPTS, GREEDY)) == expected


def test_a_cached_prefix_of_older_weights_is_forgotten(llama: nn.Module) -> None:
    prompt = [11 + i % 60 for i in range(200)]
    engine = build("vllm", llama)
    engine.generate([prompt], GREEDY, group_size=2)
    shake(llama)
    load_newest(engine)
    response = engine.generate([prompt], GREEDY)[0][0]
    assert list(response.token_ids) == plain_generate(llama, prompt, 12)
    expected = forward_logprobs(llama, prompt, response.token_ids, 1.0)
    torch.testing.assert_close(torch.tensor(response.logprobs), expected, atol=1e-4, rtol=0)


def test_separate_output_weights_are_handed_over_too() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=False,
        initializer_range=0.2,
        max_position_embeddings=256,
    )
    model = LlamaForCausalLM(config).eval()
    engine = build("vllm", model)
    shake(model)
    load_newest(engine)
    assert tokens(engine.generate(PROMPTS, GREEDY)) == [[tuple(plain_generate(model, p, 12))] for p in PROMPTS]


def test_sleep_gives_the_cache_back_and_waking_takes_it_again(llama: nn.Module) -> None:
    engine = build("vllm", llama)
    held = held_bytes(engine)
    assert held >= 2 * 2 * 32 * 4 * 8 * 1024
    engine.sleep()
    engine.sleep()
    assert held_bytes(engine) == 0
    engine.generate(PROMPTS, GREEDY)
    engine.generate(PROMPTS, GREEDY)
    assert held_bytes(engine) == held


def test_starting_leaves_torch_as_it_was(llama: nn.Module) -> None:
    torch.manual_seed(5)
    state, threads, grad = torch.get_rng_state(), torch.get_num_threads(), torch.is_grad_enabled()
    build("vllm", llama)
    assert torch.equal(torch.get_rng_state(), state)
    assert (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype()) == (
        threads,
        grad,
        torch.float32,
    )
    torch.set_num_threads(threads)


def test_a_second_engine_stops_the_first_which_starts_again_when_used(llama: nn.Module) -> None:
    first = build("vllm", llama)
    expected = first.generate(PROMPTS, SAMPLED)
    other = qwen3().eval()
    second = build("vllm", other)
    assert tokens(second.generate(PROMPTS, GREEDY)) == [[tuple(plain_generate(other, p, 12))] for p in PROMPTS]
    assert first.generate(PROMPTS, SAMPLED) == expected


def test_a_prompt_without_room_for_its_response_is_told_with_numbers(llama: nn.Module) -> None:
    engine = build("vllm", llama, max_model_len=64)
    with pytest.raises(DataError) as long:
        engine.generate([PROMPTS[0], [11] * 60], GREEDY)
    assert all(number in str(long.value) for number in ("60", "12", "64"))
    assert len(engine.generate([[11] * 52], GREEDY)[0][0].token_ids) == 12


def test_a_cache_that_no_memory_holds_is_told_with_the_numbers(llama: nn.Module) -> None:
    """0.19 does not compare the two on a CPU, and says what it could not allocate."""
    both = r"the cache of vLLM needs 9313\.23 GiB, and [\d.]+ GiB of [\d.]+ GiB of host memory are free"
    with pytest.raises(DoesNotFitError, match=rf"{both}|ran out of memory: .* tried to allocate \d+ bytes"):
        build("vllm", llama, kv_cache_bytes=10**13)


def test_a_cache_too_small_for_one_sequence_is_told_with_both_numbers(llama: nn.Module) -> None:
    with pytest.raises(DoesNotFitError, match=r"a sequence of 1024 tokens needs a cache of [\d.]+ GiB, and vLLM has"):
        build("vllm", llama, kv_cache_bytes=2 * 2 * 32 * 4 * 128 * 2)


def test_a_model_that_vllm_cannot_attend_with_is_refused_with_the_cause() -> None:
    """Heads of 8 numbers: vLLM starts, and dies of the first token."""
    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4
    )
    with pytest.raises(RLCompatError, match=r"stopped while generating: RuntimeError: .*head_dim=8") as caught:
        build("vllm", LlamaForCausalLM(config).eval(), max_model_len=64)
    assert "rollout.engine=native" in str(caught.value.hint)


def test_a_model_that_vllm_computes_otherwise_is_refused(llama: nn.Module) -> None:
    """A change of the forward that the configuration does not tell of."""
    llama.model.norm.register_forward_hook(lambda module, args, output: 2 * output)
    with pytest.raises(ModelError) as refused:
        build("vllm", llama)
    assert "`rollout.engine=native`" in str(refused.value.hint)


def test_after_death_all_memory_is_back_though_the_error_lives_and_the_next_call_starts_again(llama: nn.Module) -> None:
    engine = build("vllm", llama)
    expected = engine.generate(PROMPTS, GREEDY)
    (held,) = engine._engine.collective_rpc(alive)
    engine._engine.apply_model(lambda model: setattr(model.model.norm, "forward", None))
    with pytest.raises(RLCompatError, match="TypeError") as caught:
        engine.generate(PROMPTS, GREEDY)
    assert isinstance(caught.value.__cause__, TypeError)
    assert [type(item()) for item in held] == [type(None)] * len(held)
    assert engine.generate(PROMPTS, GREEDY) == expected


def test_nothing_of_vllms_is_alive_after_it_stops_awake_or_asleep(llama: nn.Module) -> None:
    engine = build("vllm", llama)
    expected = engine.generate(PROMPTS, SAMPLED)
    for leave in (lambda: None, engine.sleep):
        (held,) = engine._engine.collective_rpc(alive)
        assert all(item() is not None for item in held)
        leave()
        engine.stop()
        assert [type(item()) for item in held] == [type(None)] * len(held)
        assert engine.generate(PROMPTS, SAMPLED) == expected


def test_nothing_of_vllms_is_alive_when_its_engine_is_dropped(llama: nn.Module) -> None:
    engine = build("vllm", llama)
    (held,) = engine._engine.collective_rpc(alive)
    del engine
    gc.collect()
    assert [type(item()) for item in held] == [type(None)] * len(held)


def test_nothing_of_vllms_is_printed(llama: nn.Module, capfd: pytest.CaptureFixture[str]) -> None:
    engine = build("vllm", llama)
    engine.generate(PROMPTS, GREEDY)
    load_newest(engine)
    assert capfd.readouterr().out == ""
    assert logging.getLogger("vllm").propagate is False
    assert [line for line in engine._log.lines if "Failed to load" in line] == []
