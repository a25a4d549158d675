"""What every engine promises of a call: seeds, stop strings, raw log-probabilities, progress and abort."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch
from rollout.conftest import PROMPTS, build, forward_logprobs
from torch import nn

from rl_compat.errors import ConfigError
from rl_compat.planning.types import RolloutPlan
from rl_compat.rollout.build import build_rollout_engine
from rl_compat.rollout.session import RolloutSession
from rl_compat.rollout.types import SamplingParams

SAMPLED = SamplingParams(max_new_tokens=12, seed=7)
GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)
FILTERED = SamplingParams(max_new_tokens=12, seed=7, temperature=1.3, top_k=20, top_p=0.9, min_p=0.02)


def letters(token_ids: Sequence[int]) -> str:
    """Every id as two letters."""
    return "".join(chr(97 + token // 26) + chr(97 + token % 26) for token in token_ids)


def decoding(name: str, model: nn.Module, **changes: object) -> RolloutSession:
    settings = {"compute_dtype": "fp32", "max_num_seqs": 8, "max_prefill_tokens": 64} | changes
    return build_rollout_engine(model, plan=RolloutPlan(engine=name, **settings), pad_token_id=0, decode=letters)


@pytest.mark.parametrize("params", [SAMPLED, FILTERED])
def test_what_is_drawn_does_not_depend_on_what_else_is_in_the_batch(
    engine_name: str, llama: nn.Module, params: SamplingParams
) -> None:
    together = build(engine_name, llama).generate(PROMPTS, params, group_size=2)
    narrow = build(engine_name, llama, max_num_seqs=3, max_prefill_tokens=4).generate(PROMPTS, params, group_size=2)
    others = [(5, 6, 7), (8,), PROMPTS[0], (9, 9)]
    changed = build(engine_name, llama).generate(others, params, group_size=2)
    tokens = [[r.token_ids for r in group] for group in together]
    assert [[r.token_ids for r in group] for group in narrow] == tokens
    assert [r.token_ids for r in changed[2]] == tokens[0]


def test_a_prompt_draws_the_same_alone_in_another_order_and_in_a_call_split_in_two(
    engine: RolloutSession,
) -> None:
    together = engine.generate(PROMPTS, SAMPLED, group_size=2)
    tokens = [[r.token_ids for r in group] for group in together]
    alone = [engine.generate([prompt], SAMPLED, group_size=2)[0] for prompt in PROMPTS]
    backward = engine.generate(PROMPTS[::-1], SAMPLED, group_size=2)[::-1]
    halves = [
        *engine.generate(PROMPTS[:2], SAMPLED, group_size=2),
        *engine.generate(PROMPTS[2:], SAMPLED, group_size=2),
    ]
    for groups in (alone, backward, halves):
        assert [[r.token_ids for r in group] for group in groups] == tokens


def test_copies_of_a_prompt_are_counted_over_the_call(engine: RolloutSession) -> None:
    prompt, other = PROMPTS[:2]
    four = [r.token_ids for r in engine.generate([prompt], SAMPLED, group_size=4)[0]]
    repeated = engine.generate([prompt, other, prompt], SAMPLED, group_size=2)
    assert [r.token_ids for group in (repeated[0], repeated[2]) for r in group] == four
    assert len(set(four)) == 4
    single = engine.generate([prompt, prompt, prompt, prompt], SAMPLED)
    assert [group[0].token_ids for group in single] == four


@pytest.mark.parametrize("name", ["transformers", pytest.param("vllm", marks=pytest.mark.vllm)])
def test_all_engines_draw_the_same_tokens(name: str, llama: nn.Module) -> None:
    native, other = build("native", llama), build(name, llama)
    for params in (SAMPLED, FILTERED):
        ours, theirs = (
            native.generate(PROMPTS, params, group_size=2),
            other.generate(PROMPTS, params, group_size=2),
        )
        assert [[r.token_ids for r in g] for g in ours] == [[r.token_ids for r in g] for g in theirs]


def test_min_p_draws_only_what_is_likely_enough(engine_name: str, llama: nn.Module) -> None:
    params = SamplingParams(max_new_tokens=12, temperature=3.0, min_p=0.999999, seed=3)
    likely = build(engine_name, llama).generate(PROMPTS, params)
    greedy = build(engine_name, llama).generate(PROMPTS, GREEDY)
    assert [g[0].token_ids for g in likely] == [g[0].token_ids for g in greedy]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.6])
def test_raw_logprobs_are_those_at_temperature_one(engine_name: str, llama: nn.Module, temperature: float) -> None:
    params = SamplingParams(max_new_tokens=8, temperature=temperature, seed=1, raw_logprobs=True)
    response = build(engine_name, llama).generate(PROMPTS[:1], params)[0][0]
    for numbers, at in ((response.raw_logprobs, 1.0), (response.logprobs, temperature or 1.0)):
        expected = forward_logprobs(llama, PROMPTS[0], response.token_ids, at)
        torch.testing.assert_close(torch.tensor(numbers), expected, atol=1e-4, rtol=0)


def test_raw_logprobs_are_not_given_unasked(engine: RolloutSession) -> None:
    assert engine.generate(PROMPTS[:1], SAMPLED)[0][0].raw_logprobs == ()


def test_a_stop_string_ends_a_response_with_the_token_that_completes_it(engine_name: str, llama: nn.Module) -> None:
    free = build(engine_name, llama).generate(PROMPTS, GREEDY)[0][0]
    text = letters(free.token_ids)
    for start, end in ((0, 2), (3, 6), (7, 13)):
        string = text[start:end]
        count = -(-(text.index(string) + len(string)) // 2)
        params = SamplingParams(max_new_tokens=12, temperature=0.0, stop_strings=("ZZ", string), raw_logprobs=True)
        response = decoding(engine_name, llama).generate(PROMPTS, params, group_size=2)[0][1]
        assert (response.token_ids, response.finish_reason) == (free.token_ids[:count], "stop")
        assert len(response.logprobs) == len(response.raw_logprobs) == count


def test_a_stop_string_is_not_found_across_the_prompt(engine_name: str, llama: nn.Module) -> None:
    free = build(engine_name, llama).generate(PROMPTS[:1], GREEDY)[0][0]
    string = letters((PROMPTS[0][-1], free.token_ids[0]))
    assert string not in letters(free.token_ids)
    params = SamplingParams(max_new_tokens=12, temperature=0.0, stop_strings=(string,))
    assert decoding(engine_name, llama).generate(PROMPTS[:1], params)[0][0].token_ids == free.token_ids


def test_stop_strings_without_a_tokenizer_are_refused(engine: RolloutSession) -> None:
    with pytest.raises(ConfigError):
        engine.generate(PROMPTS, SamplingParams(max_new_tokens=2, stop_strings=("a",)))


def test_a_callback_that_returns_false_ends_the_call_and_keeps_the_rest(engine_name: str, llama: nn.Module) -> None:
    params = SamplingParams(max_new_tokens=40, seed=1, stop_token_ids=tuple(range(0, 90, 9)))
    whole = build(engine_name, llama, max_num_seqs=2).generate(PROMPTS, params, group_size=2)
    engine = build(engine_name, llama, max_num_seqs=2)
    groups = engine.generate(PROMPTS, params, group_size=2, on_progress=lambda count: False)
    reasons = [r.finish_reason for group in groups for r in group]
    assert "abort" in reasons and set(reasons) - {"abort"}
    for ours, full in zip((r for g in groups for r in g), (r for g in whole for r in g), strict=True):
        assert ours.token_ids == full.token_ids[: len(ours.token_ids)]
        assert len(ours.logprobs) == len(ours.token_ids)
        assert ours.finish_reason in ("abort", full.finish_reason)
    assert engine.generate(PROMPTS, params, group_size=2) == whole


def test_another_thread_can_abort(engine_name: str, llama: nn.Module) -> None:
    engine = build(engine_name, llama)
    started = threading.Event()
    params = SamplingParams(max_new_tokens=900, seed=1, stop_token_ids=tuple(range(0, 90, 9)))
    aborter = threading.Thread(target=lambda: (started.wait(), engine.abort()))
    aborter.start()

    def progress(count: int) -> None:
        started.set()
        aborter.join()

    groups = engine.generate(PROMPTS, params, group_size=2, on_progress=progress)
    reasons = [response.finish_reason for group in groups for response in group]
    aborter.join()
    assert "abort" in reasons


def test_what_prompts_start_with_in_common_changes_nothing(engine_name: str, llama: nn.Module) -> None:
    start = tuple(range(10, 40))
    prompts = [(*start, 50, 51), (*start, 52), (*start, 50, 51, 53, 54), start, (*start, 52)]
    together = build(engine_name, llama, max_num_seqs=3, max_prefill_tokens=8).generate(prompts, GREEDY, group_size=2)
    for prompt, group in zip(prompts, together, strict=True):
        alone = build(engine_name, llama).generate([prompt], GREEDY)[0][0]
        assert [r.token_ids for r in group] == [alone.token_ids] * 2
        torch.testing.assert_close(torch.tensor(group[0].logprobs), torch.tensor(alone.logprobs), atol=1e-4, rtol=0)
