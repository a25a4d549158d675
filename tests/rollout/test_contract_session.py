"""What every engine guarantees of a session: requests that come and go, pauses, and weights that change in between."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from rollout.conftest import PROMPTS, build, forward_logprobs
from rollout.test_contract import bytes_of_tensors
from rollout.test_contract_calls import decoding, letters
from torch import nn

from rl_compat.errors import ConfigError, DataError, ModelError
from rl_compat.resharding.source import SharedStorage
from rl_compat.rollout.session import RolloutSession, requests_for
from rl_compat.rollout.types import Request, Response, SamplingParams

SAMPLED = SamplingParams(max_new_tokens=12, seed=7)
ENDING = SamplingParams(max_new_tokens=40, seed=1, stop_token_ids=tuple(range(0, 90, 9)))
GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)


def drained(session: RolloutSession, *, max_tokens: int | None = None) -> dict[int, Response]:
    found: dict[int, Response] = {}
    while session.num_unfinished:
        found |= session.step(max_tokens=max_tokens)
    return found


def tokens(responses: Sequence[Response]) -> list[tuple[int, ...]]:
    return [response.token_ids for response in responses]


def shake(model: nn.Module) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))


def flat(groups: Sequence[Sequence[Response]]) -> list[Response]:
    return [response for group in groups for response in group]


@pytest.mark.parametrize("max_tokens", [None, 1, 5])
def test_submitted_and_stepped_requests_give_what_generate_gives(
    engine: RolloutSession, max_tokens: int | None
) -> None:
    expected = flat(engine.generate(PROMPTS, ENDING, group_size=2))
    numbers = engine.submit(requests_for(PROMPTS, ENDING, group_size=2))
    found = drained(engine, max_tokens=max_tokens)
    assert sorted(found) == numbers
    assert tokens([found[number] for number in numbers]) == tokens(expected)
    assert [found[number].finish_reason for number in numbers] == [response.finish_reason for response in expected]
    for number, response in zip(numbers, expected, strict=True):
        torch.testing.assert_close(
            torch.tensor(found[number].logprobs), torch.tensor(response.logprobs), atol=1e-4, rtol=0
        )


def test_a_step_returns_each_response_once_and_gives_every_request_in_progress_a_token(engine: RolloutSession) -> None:
    engine.submit(requests_for(PROMPTS, SAMPLED))
    assert engine.step(max_tokens=1) == {}
    assert {len(response.token_ids) for response in engine.pause().values()} == {1}
    assert sorted(drained(engine, max_tokens=1)) == [0, 1, 2, 3]
    assert engine.step() == {}


@pytest.mark.parametrize("max_num_seqs", [1, 3, 8])
def test_requests_submitted_while_others_decode_draw_what_they_draw_alone(
    engine_name: str, llama: nn.Module, max_num_seqs: int
) -> None:
    """Fewer slots than requests, about as many, and more; later prompts are longer than any before."""
    late = [[*range(10, 60)], [61, 62], list(PROMPTS[0])]
    expected = tokens(flat(build(engine_name, llama).generate([*PROMPTS, *late[:2]], ENDING)))
    engine = build(engine_name, llama, max_num_seqs=max_num_seqs)
    engine.submit(requests_for(PROMPTS, ENDING))
    found = engine.step(max_tokens=2)
    engine.submit(requests_for(late[:2], ENDING))
    found |= engine.step(max_tokens=2)
    engine.submit([Request(prompt_ids=late[2], params=ENDING, copy=1)])
    found |= drained(engine, max_tokens=3)
    assert [found[number].token_ids for number in range(6)] == expected
    twice = build(engine_name, llama).generate([PROMPTS[0]], ENDING, group_size=2)[0]
    assert found[6].token_ids == twice[1].token_ids


def test_prompts_without_the_start_that_all_before_them_share(engine_name: str, llama: nn.Module) -> None:
    start = tuple(range(10, 40))
    first, late = [(*start, 50, 51), (*start, 52), (*start, 53, 54)], [(*start, 55), (7, 8, 9), (*start, 52)]
    alone = {prompt: build(engine_name, llama).generate([prompt], GREEDY)[0][0] for prompt in {*first, *late}}
    engine = build(engine_name, llama, max_num_seqs=2)
    engine.submit(requests_for(first, GREEDY))
    found = engine.step(max_tokens=3)
    engine.submit(requests_for(late, GREEDY))
    found |= drained(engine)
    for number, prompt in enumerate([*first, *late]):
        assert found[number].token_ids == alone[prompt].token_ids
        torch.testing.assert_close(
            torch.tensor(found[number].logprobs), torch.tensor(alone[prompt].logprobs), atol=1e-4, rtol=0
        )


def test_requests_of_different_settings_share_a_session(engine_name: str, llama: nn.Module) -> None:
    """Seeds, limits and stop tokens in one batch; another temperature waits for its turn."""
    settings = [
        SAMPLED,
        replace(SAMPLED, seed=2**62 + 3, max_new_tokens=5),
        replace(SAMPLED, stop_token_ids=tuple(range(0, 90, 3))),
        replace(SAMPLED, temperature=0.5),
        replace(GREEDY, raw_logprobs=True),
    ]
    engine = build(engine_name, llama)
    numbers = engine.submit([Request(prompt_ids=PROMPTS[1], params=params) for params in settings])
    found = drained(engine)
    for number, params in zip(numbers, settings, strict=True):
        (alone,) = build(engine_name, llama).generate([PROMPTS[1]], params)[0]
        assert (found[number].token_ids, found[number].finish_reason) == (alone.token_ids, alone.finish_reason)
        assert len(found[number].raw_logprobs) == len(alone.raw_logprobs)


def test_paused_responses_are_the_start_of_what_they_become(engine: RolloutSession) -> None:
    expected = tokens(flat(engine.generate(PROMPTS, ENDING, group_size=2)))
    numbers = engine.submit(requests_for(PROMPTS, ENDING, group_size=2))
    found = engine.step(max_tokens=3) | engine.step(max_tokens=1)
    for _ in range(3):
        paused = engine.pause()
        assert paused.keys() <= set(numbers) - found.keys()
        for number, response in paused.items():
            full = expected[number - numbers[0]]
            assert response.token_ids == full[: len(response.token_ids)]
            assert len(response.logprobs) == len(response.policy_versions) == len(response.token_ids)
        found |= engine.step(max_tokens=2)
    found |= drained(engine)
    assert [found[number].token_ids for number in numbers] == expected


def test_an_engine_that_sleeps_between_steps_goes_on_where_it_was(engine: RolloutSession) -> None:
    expected = tokens(flat(engine.generate(PROMPTS, SAMPLED)))
    engine.submit(requests_for(PROMPTS, SAMPLED))
    found = engine.step(max_tokens=3)
    engine.sleep()
    found |= drained(engine)
    assert tokens([found[number] for number in sorted(found)]) == expected


def test_weights_loaded_between_steps_draw_what_follows_and_every_token_tells_its_version(
    engine: RolloutSession, llama: nn.Module
) -> None:
    """ASYNC-01 and ASYNC-03: no key or value of the older weights is used.

    The rest is what the new ones give for the whole sequence.
    """
    old = copy.deepcopy(llama)
    numbers = engine.submit(requests_for(PROMPTS, SAMPLED))
    engine.step(max_tokens=4)
    shake(llama)
    engine.load(SharedStorage(llama, version=5))
    before = {number: len(response.token_ids) for number, response in engine.pause().items()}
    assert set(before) == set(numbers) and set(before.values()) <= {1, 2, 3, 4}
    found = drained(engine)
    for number, prompt in zip(numbers, PROMPTS, strict=True):
        response, cut = found[number], before[number]
        assert response.policy_versions == (0,) * cut + (5,) * (12 - cut)
        expected = torch.cat(
            [
                forward_logprobs(old, prompt, response.token_ids, 1.0)[:cut],
                forward_logprobs(llama, prompt, response.token_ids, 1.0)[cut:],
            ]
        )
        torch.testing.assert_close(torch.tensor(response.logprobs), expected, atol=1e-4, rtol=0)
    assert engine.generate(PROMPTS[:1], SAMPLED)[0][0].policy_versions == (5,) * 12


def test_a_cached_prefix_of_older_weights_is_not_used(engine: RolloutSession, llama: nn.Module) -> None:
    """ASYNC-03: the prompts share a prefix, and every weight changes by one percent."""
    prompts = [[*range(10, 34), last] for last in (40, 41, 42)]
    engine.generate(prompts, SAMPLED)
    with torch.no_grad():
        for parameter in llama.parameters():
            parameter.mul_(1.01)
    engine.load(SharedStorage(llama, version=1))
    for prompt, (response,) in zip(prompts, engine.generate(prompts, SAMPLED), strict=True):
        expected = forward_logprobs(llama, prompt, response.token_ids, 1.0)
        torch.testing.assert_close(torch.tensor(response.logprobs), expected, atol=1e-5, rtol=0)
        assert set(response.policy_versions) == {1}


def test_shared_weights_are_loaded_without_a_copy(engine_name: str, llama: nn.Module) -> None:
    if engine_name == "vllm":
        pytest.skip("vLLM computes with weights of its own")
    engine = build(engine_name, llama)
    engine.generate(PROMPTS, GREEDY)
    addresses = [parameter.data_ptr() for parameter in llama.parameters()]
    before = bytes_of_tensors()
    engine.load(SharedStorage(llama, version=1))
    assert bytes_of_tensors() == before
    assert [parameter.data_ptr() for parameter in engine._weights.model.parameters()] == addresses


def test_an_engine_with_weights_of_its_own_takes_those_of_a_source(engine_name: str, llama: nn.Module) -> None:
    """As a rollout in another process would: its model is another copy."""
    engine = build(engine_name, copy.deepcopy(llama))
    before = tokens(flat(engine.generate(PROMPTS, GREEDY)))
    shake(llama)
    engine.load(SharedStorage(llama, version=1))
    after = flat(engine.generate(PROMPTS, GREEDY))
    assert tokens(after) != before
    for prompt, response in zip(PROMPTS, after, strict=True):
        expected = forward_logprobs(llama, prompt, response.token_ids, 1.0)
        torch.testing.assert_close(torch.tensor(response.logprobs), expected, atol=1e-4, rtol=0)


def test_the_weights_of_another_model_are_refused(engine: RolloutSession, qwen2: nn.Module) -> None:
    with pytest.raises(ModelError):
        engine.load(SharedStorage(qwen2, version=1))
    assert engine.policy_version == 0


def test_abort_ends_what_waits_and_what_is_in_progress(engine_name: str, llama: nn.Module) -> None:
    engine = build(engine_name, llama, max_num_seqs=2)
    whole = tokens(flat(engine.generate(PROMPTS, GREEDY)))
    numbers = engine.submit(requests_for(PROMPTS, GREEDY))
    engine.step(max_tokens=3)
    engine.abort()
    found = engine.step()
    assert (sorted(found), engine.num_unfinished) == (numbers, 0)
    assert {response.finish_reason for response in found.values()} == {"abort"}
    assert any(response.token_ids for response in found.values())
    for number, full in zip(numbers, whole, strict=True):
        assert found[number].token_ids == full[: len(found[number].token_ids)]
    assert tokens(flat(engine.generate(PROMPTS, GREEDY))) == whole


def test_generate_between_steps_leaves_the_other_requests_in_progress(engine: RolloutSession) -> None:
    expected = tokens(flat(engine.generate(PROMPTS, SAMPLED)))
    numbers = engine.submit(requests_for(PROMPTS, SAMPLED))
    engine.step(max_tokens=2)
    assert tokens(flat(engine.generate(PROMPTS[:2], SAMPLED))) == expected[:2]
    found = drained(engine)
    assert tokens([found[number] for number in numbers]) == expected


def test_an_error_of_the_caller_forgets_the_requests_of_its_call_alone(engine: RolloutSession) -> None:
    expected = tokens(flat(engine.generate(PROMPTS, ENDING)))
    (number,) = engine.submit(requests_for(PROMPTS[:1], ENDING))

    def fail(count: int) -> bool | None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS[1:], ENDING, on_progress=fail)
    assert engine.num_unfinished == 1
    assert drained(engine)[number].token_ids == expected[0]


def test_a_request_that_is_refused_leaves_the_session_as_it_was(engine: RolloutSession) -> None:
    with pytest.raises(DataError):
        engine.submit([*requests_for(PROMPTS, GREEDY), Request(prompt_ids=(), params=GREEDY)])
    with pytest.raises(ConfigError):
        engine.submit(requests_for(PROMPTS, replace(GREEDY, stop_strings=("a",))))
    assert (engine.num_unfinished, engine.step()) == (0, {})


def test_a_stop_string_is_found_across_a_pause(engine_name: str, llama: nn.Module) -> None:
    free = build(engine_name, llama).generate(PROMPTS[:1], GREEDY)[0][0]
    string = letters(free.token_ids)[7:13]
    params = replace(GREEDY, stop_strings=(string,))
    engine = decoding(engine_name, llama)
    expected = engine.generate(PROMPTS[:1], params)[0][0]
    assert (len(expected.token_ids), expected.finish_reason) == (7, "stop")
    (number,) = engine.submit(requests_for(PROMPTS[:1], params))
    found: dict[int, Response] = {}
    while engine.num_unfinished:
        found |= engine.step(max_tokens=1)
        engine.pause()
    assert (found[number].token_ids, found[number].finish_reason) == (expected.token_ids, "stop")
