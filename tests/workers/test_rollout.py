"""A rollout worker joined to a policy worker by its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.engines import load_settings, random_batch, role_plan
from transformers import LlamaConfig, LlamaForCausalLM

from rl_compat.config.types import OnUpdate
from rl_compat.distributed.ranks import own_counter
from rl_compat.errors import ModelError
from rl_compat.models.load import load_causal_lm
from rl_compat.planning.types import RolloutPlan
from rl_compat.resharding.publish import StoreSource
from rl_compat.resharding.sharded import ShardedSource
from rl_compat.resharding.source import SharedStorage, Weight, WeightSource
from rl_compat.resharding.store import MemoryStore
from rl_compat.rollout.session import RequestQueue, dealt, requests_for
from rl_compat.rollout.types import Response, SamplingParams
from rl_compat.trainer.online.metrics import staleness_metrics
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.workers.policy import PolicySettings, PolicyWorker
from rl_compat.workers.rollout import RolloutSettings, RolloutWorker, own_storage

PROMPTS = [[11, 12, 13], [21, 22]]


class Sent:
    """Weights as they arrive from another process: copies, one at a time."""

    def __init__(self, source: SharedStorage) -> None:
        self._source = source
        self.num_sent = 0
        self.breaks_after: int | None = None

    @property
    def version(self) -> int:
        return self._source.version

    @property
    def revision(self) -> int:
        return self._source.revision

    def resident(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __iter__(self) -> Iterator[Weight]:
        for number, (name, tensor, version) in enumerate(self._source):
            if number == self.breaks_after:
                raise ConnectionError("the sender is gone")
            self.num_sent += 1
            yield Weight(name, tensor.detach().clone(), version)


def policy(folder: Path) -> PolicyWorker:
    role = role_plan(micro_batch_size=8)
    optimizer = OptimizerSettings(lr=1e-2)
    settings = PolicySettings(
        model=load_settings(folder, role=role),
        temperature=1.0,
        num_epochs=1,
        optimizer=optimizer,
    )
    return PolicyWorker(settings)


def rollout(folder: Path, source: WeightSource, *, on_update: OnUpdate = "wait", **plan: Any) -> RolloutWorker:
    values = {"engine": "native", "compute_dtype": "fp32", "max_num_seqs": 4, "max_prefill_tokens": 64} | plan
    settings = RolloutSettings(
        model=load_settings(folder, role=role_plan()),
        plan=RolloutPlan(**values),
        pad_token_id=0,
        num_valid_tokens=60,
        on_update=on_update,
    )
    return RolloutWorker(settings, source)


REQUESTS = requests_for(PROMPTS, SamplingParams(max_new_tokens=6, seed=3), group_size=2)


def generate(worker: RolloutWorker, *, call: str = "first") -> list[Response]:
    responses = worker.generate(call=call, requests=REQUESTS, rows=[0, 0, 1, 1])
    return [responses[place] for place in range(4)]


def learn(worker: PolicyWorker) -> None:
    worker.update(batch=random_batch(), seed=1)


def test_a_rollout_in_the_same_process_generates_with_the_tensors_of_the_policy(llama_folder: Path) -> None:
    trained = policy(llama_folder)
    worker = rollout(llama_folder, trained.weight_source())
    generate(worker)
    addresses = [parameter.data_ptr() for parameter in trained.engine.model.parameters()]
    learn(trained)
    generate(worker)
    weights = worker.session._weights.model  # type: ignore[attr-defined]
    assert [parameter.data_ptr() for parameter in weights.parameters()] == addresses


@pytest.mark.parametrize("sleep_between", [False, True])
def test_every_token_carries_the_version_of_the_policy_after_updates_and_a_restored_state(
    llama_folder: Path, tmp_path: Path, sleep_between: bool
) -> None:
    trained = policy(llama_folder)
    worker = rollout(llama_folder, trained.weight_source(), sleep_between=sleep_between)
    first = generate(worker)
    trained.save_state(folder=tmp_path)
    learn(trained)
    learn(trained)
    second = generate(worker)
    trained.load_state(folder=tmp_path)
    third = generate(worker)
    for trajectories, version in ((first, 0), (second, 2), (third, 0)):
        assert {number for one in trajectories for number in one.policy_versions} == {version}
    assert second != first
    assert third == first


def test_a_rollout_elsewhere_loads_the_weights_once_for_each_change(llama_folder: Path) -> None:
    trained = policy(llama_folder)
    source = trained.weight_source()
    assert isinstance(source, SharedStorage)
    sent = Sent(source)
    near, far = rollout(llama_folder, source), rollout(llama_folder, sent)
    num_weights = len(list(source))
    for updates in range(3):
        expected = generate(near)
        for _ in range(2):
            assert generate(far) == expected
        assert sent.num_sent == (updates + 1) * num_weights
        learn(trained)
        (handover,) = far.take_handovers()
        assert (handover.version, handover.num_weights) == (updates, num_weights)
        assert far.take_handovers() == near.take_handovers() == []


def test_a_rollout_with_its_own_storage_frees_it_while_it_sleeps(llama_folder: Path) -> None:
    trained = policy(llama_folder)
    source = trained.weight_source()
    assert isinstance(source, SharedStorage)
    near, far = rollout(llama_folder, source), rollout(llama_folder, Sent(source), sleep_between=True)
    for _ in range(2):
        assert generate(far) == generate(near)
        assert sum(parameter.nbytes for parameter in far.session._source.parameters()) == 0


def test_a_rollout_loads_its_own_storage_in_the_dtype_that_it_computes_in(llama_folder: Path) -> None:
    role = role_plan(num_shards=2, gradient_checkpointing=True)
    plan = RolloutPlan(engine="native", compute_dtype="bf16", max_num_seqs=4, max_prefill_tokens=64)
    settings = RolloutSettings(
        model=load_settings(llama_folder, role=role), plan=plan, pad_token_id=0, num_valid_tokens=60
    )
    model = load_causal_lm(own_storage(settings))
    assert model.get_input_embeddings().weight.dtype == torch.bfloat16
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_half_loaded_weights_generate_nothing(llama_folder: Path) -> None:
    """ASYNC-02"""
    trained = policy(llama_folder)
    source = trained.weight_source()
    assert isinstance(source, SharedStorage)
    sent = Sent(source)
    worker = rollout(llama_folder, sent)
    generate(worker)
    learn(trained)
    sent.breaks_after = 3
    for _ in range(2):
        with pytest.raises(ConnectionError):
            generate(worker)
    assert worker.session.policy_version == 0
    with pytest.raises(ModelError):
        worker.session.generate([[11]], SamplingParams(max_new_tokens=2))
    sent.breaks_after = None
    assert {version for one in generate(worker) for version in one.policy_versions} == {1}


def test_a_rollout_on_another_pool_generates_with_what_the_policy_has_published(llama_folder: Path) -> None:
    trained, store = policy(llama_folder), MemoryStore()
    near, far = rollout(llama_folder, trained.weight_source()), rollout(llama_folder, StoreSource(store))
    for version in range(3):
        far.offer(published=trained.publish(store=store, dtypes=far.weight_dtypes()))
        expected = generate(near)
        assert generate(far) == expected
        assert {number for one in expected for number in one.policy_versions} == {version}
        (handover,) = far.take_handovers()
        assert handover.received_bytes > 0
        learn(trained)


def wide_llama(folder: Path) -> Path:
    """A model that vLLM can compute."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def during_token(worker: RolloutWorker, number: int, act: Callable[[], None]) -> None:
    """Act, as another thread would, while the worker draws the token of this number, counted over all its calls."""
    advance, drawn = worker.session._advance, 0

    def counted(max_tokens: int | None, report: Callable[[int], None]) -> Any:
        nonlocal drawn
        drawn += 1
        if drawn == number:
            act()
        return advance(max_tokens, report)

    worker.session._advance = counted  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("on_update", "versions", "num_lost"),
    [("continue", (0, 0, 0, 1, 1, 1), 0), ("abort", (1, 1, 1, 1, 1, 1), 12), ("wait", (0, 0, 0, 0, 0, 0), 0)],
)
def test_weights_that_are_offered_during_a_call_are_taken_as_the_settings_say(
    on_update: OnUpdate, versions: tuple[int, ...], num_lost: int, llama_folder: Path
) -> None:
    """ASYNC-01"""
    trained, store = policy(llama_folder), MemoryStore()
    worker = rollout(llama_folder, StoreSource(store), on_update=on_update)

    def publish() -> None:
        worker.offer(published=trained.publish(store=store, dtypes=worker.weight_dtypes()))

    publish()
    learn(trained)
    during_token(worker, 3, publish)
    first = generate(worker)
    assert [one.policy_versions for one in first] == [versions] * 4
    assert worker.take_lost_tokens() == num_lost
    assert worker.take_lost_tokens() == 0
    assert {number for one in generate(worker) for number in one.policy_versions} == {1}
    whole = generate(rollout(llama_folder, trained.weight_source()))
    same = [one.token_ids == other.token_ids for one, other in zip(first, whole, strict=True)]
    assert all(same) is (on_update == "abort")


def test_announced_responses_begin_during_the_call_before_theirs(llama_folder: Path) -> None:
    source = policy(llama_folder).weight_source()
    assert isinstance(source, SharedStorage)
    worker = rollout(llama_folder, Sent(source), on_update="continue", max_num_seqs=8)
    during_token(worker, 3, lambda: worker.announce(call="second", requests=REQUESTS))
    first = generate(worker)
    assert [len(response.token_ids) for response in worker.session.pause().values()] == [3] * 4
    second = generate(worker, call="second")
    assert [one.token_ids for one in second] == [one.token_ids for one in first]
    assert worker.session.num_unfinished == 0


def test_each_response_tells_the_versions_of_its_tokens_and_its_age_is_that_of_the_oldest(llama_folder: Path) -> None:
    """ASYNC-01: responses that span an update, begin after it was offered, or end before it and are returned later."""
    trained, store = policy(llama_folder), MemoryStore()
    worker = rollout(llama_folder, StoreSource(store), on_update="continue", max_num_seqs=8)

    def publish() -> None:
        worker.offer(published=trained.publish(store=store, dtypes=worker.weight_dtypes()))

    def update() -> None:
        publish()
        worker.announce(call="later", requests=REQUESTS)

    publish()
    learn(trained)
    during_token(worker, 4, update)
    spans = requests_for(PROMPTS[:1], SamplingParams(max_new_tokens=6, seed=3))
    ends_before = requests_for(PROMPTS[1:], SamplingParams(max_new_tokens=3, seed=3))
    first = worker.generate(call="first", requests=[*spans, *ends_before], rows=[0, 1])
    later = generate(worker, call="later")
    versions = [first[0].policy_versions, first[1].policy_versions, later[0].policy_versions]
    assert versions == [(0,) * 4 + (1,) * 2, (0,) * 3, (1,) * 6]
    batch = random_batch([(3, 6), (2, 3), (3, 6)])
    rows = [list(row) + [0] * (6 - len(row)) for row in versions]
    ages = staleness_metrics(batch.with_(policy_versions=torch.tensor(rows)), version=2)
    assert ages["async/staleness/max"] == 2
    assert (ages["async/staleness/1"], ages["async/staleness/2"]) == pytest.approx((1 / 3, 2 / 3))


@pytest.mark.parametrize("num_engines", [1, 2, 4])
def test_engines_that_share_the_copies_of_a_prompt_draw_what_one_engine_draws(
    num_engines: int, llama_folder: Path
) -> None:
    """DIST-10: eight responses to one prompt, 4 + 4 and 2 + 2 + 2 + 2."""
    requests = requests_for(PROMPTS[:1], SamplingParams(max_new_tokens=6, seed=7), group_size=8)
    source = policy(llama_folder).weight_source()
    share = 8 // num_engines
    found: dict[int, tuple[int, ...]] = {}
    for engine in range(num_engines):
        places = iter([engine * share])
        queue = RequestQueue(requests, lambda count, places=places: next(places, 8), share)
        taken = rollout(llama_folder, source).session.serve(queue)
        assert sorted(taken) == list(range(engine * share, (engine + 1) * share))
        found |= {place: response.token_ids for place, response in taken.items()}
    whole = rollout(llama_folder, source).session.generate(
        PROMPTS[:1], SamplingParams(max_new_tokens=6, seed=7), group_size=8
    )
    assert [found[place] for place in range(8)] == [response.token_ids for response in whole[0]]
    assert [found[place] for place in range(4)] != [found[place] for place in range(4, 8)]
    assert len(set(found.values())) > 4


def test_an_engine_that_starts_late_generates_with_no_other_weights_than_those_of_the_policy(
    llama_folder: Path,
) -> None:
    """ASYNC-07: it has a model from disk, and the policy is at version 2."""
    trained, store = policy(llama_folder), MemoryStore()
    learn(trained)
    learn(trained)
    late = rollout(llama_folder, StoreSource(store))
    with pytest.raises(AssertionError):
        generate(late)
    late.offer(published=trained.publish(store=store, dtypes=late.weight_dtypes()))
    kept = dict(store._kept)
    store._kept.clear()
    with pytest.raises(ModelError):
        generate(late)
    with pytest.raises(ModelError):
        late.session.generate(PROMPTS, SamplingParams(max_new_tokens=2))
    store._kept.update(kept)
    assert generate(late) == generate(rollout(llama_folder, trained.weight_source()))
    assert late.version == 2


@pytest.mark.parametrize("sleep_between", [False, True])
def test_a_call_that_gives_way_goes_on_with_new_weights_when_it_is_made_again(
    sleep_between: bool, llama_folder: Path
) -> None:
    trained = policy(llama_folder)
    plan: dict[str, Any] = {"max_num_seqs": 8, "sleep_between": sleep_between}
    worker = rollout(llama_folder, trained.weight_source(), on_update="continue", **plan)
    during_token(worker, 2, lambda: worker.announce(call="second", requests=REQUESTS[:2]))
    during_token(worker, 4, lambda: worker.give_way(gives_way=True))
    call: dict[str, Any] = {"call": "first", "requests": REQUESTS, "rows": [0, 0, 1, 1]}
    assert worker.generate(**call) == {}
    assert worker.generate(**call) == {}, "the policy still learns"
    learn(trained)
    worker.give_way(gives_way=False)
    first = worker.generate(**call)
    assert [one.policy_versions for one in first.values()] == [(0, 0, 0, 0, 1, 1)] * 4
    second = worker.generate(call="second", requests=REQUESTS[:2], rows=[0, 0])
    assert [one.policy_versions for one in second.values()] == [(0, 0, 1, 1, 1, 1)] * 2
    assert worker.session.num_unfinished == 0


def test_responses_are_given_as_they_end(llama_folder: Path) -> None:
    worker = rollout(llama_folder, policy(llama_folder).weight_source(), max_num_seqs=2)
    seen: list[dict[int, Response]] = []
    responses = worker.generate(call="first", requests=REQUESTS, rows=[0, 0, 1, 1], on_ended=seen.append)
    assert len(seen) == 2, "two slots"
    assert seen[0] | seen[1] == responses


DRAWN_BEFORE = 13
"tokens of the four responses when the weights come"


@pytest.mark.vllm
@pytest.mark.parametrize(("on_update", "num_lost"), [("continue", 0), ("abort", DRAWN_BEFORE), ("wait", 0)])
def test_vllm_takes_weights_that_are_offered_during_a_call_and_forgets_the_prefixes_of_older_ones(
    on_update: OnUpdate, num_lost: int, tmp_path: Path
) -> None:
    """The next call has the prompts of this one, whose keys and values vLLM caches."""
    trained, store = policy(wide_llama(tmp_path)), MemoryStore()
    engine = {"engine": "vllm", "max_model_len": 64}
    worker = rollout(tmp_path, StoreSource(store), on_update=on_update, **engine)
    requests = requests_for([list(range(1, 40)), [21, 22]], SamplingParams(max_new_tokens=6, seed=3), group_size=2)

    def responses(of: RolloutWorker, call: str) -> list[Response]:
        found = of.generate(call=call, requests=requests, rows=[0, 0, 1, 1])
        return [found[place] for place in range(4)]

    def publish() -> None:
        worker.offer(published=trained.publish(store=store, dtypes=worker.weight_dtypes()))

    publish()
    old = responses(worker, "old")
    learn(trained)
    during_token(worker, 4, publish)
    first = responses(worker, "first")
    versions = {one.policy_versions for one in first}
    if on_update == "continue":
        assert all(len(set(one)) == 2 and sorted(one) == list(one) for one in versions)
        drawn_before = [one.policy_versions.count(0) for one in first]
        assert sum(drawn_before) == DRAWN_BEFORE, drawn_before
        same = [a.token_ids[:n] == b.token_ids[:n] for a, b, n in zip(first, old, drawn_before, strict=True)]
        assert all(same)
    else:
        assert versions == {(1 if on_update == "abort" else 0,) * 6}
    assert worker.take_lost_tokens() == num_lost
    new = responses(worker, "new")
    expected = responses(rollout(tmp_path, trained.weight_source()), "new")
    assert [one.token_ids for one in new] == [one.token_ids for one in expected]
    assert [one.token_ids for one in new] != [one.token_ids for one in old]
    assert new[0].logprobs == pytest.approx(expected[0].logprobs, abs=1e-3)


@pytest.mark.vllm
def test_vllm_takes_the_weights_of_shards_one_after_the_other(tmp_path: Path) -> None:
    trained = policy(wide_llama(tmp_path))
    near, source = rollout(tmp_path, trained.weight_source()), ShardedSource(trained.engine.model, version=0)
    far = rollout(tmp_path, source, engine="vllm", sleep_between=True, max_model_len=32)
    for version in range(2):
        expected = generate(near)
        assert [one.token_ids for one in generate(far)] == [one.token_ids for one in expected]
        assert all(parameter.is_meta for parameter in far._model.parameters())
        (handover,) = far.take_handovers()
        assert (handover.version, handover.num_weights) == (version, len(list(trained.weight_source())))
        assert handover.peak_bytes == 0, "one rank has the weights whole"
        learn(trained)
        source.changed(version=version + 1)


@pytest.mark.parametrize(("num_prompts", "num_engines"), [((1, 1), 2), ((2, 6), 2), ((1, 7), 4), ((3, 2), 3)])
def test_a_few_long_prompts_are_dealt_over_all_engines(num_prompts: tuple[int, int], num_engines: int) -> None:
    """All requests begin at once: an engine that gets the long ones would work alone at the end."""
    prompts = [[*range(6, 46)]] * num_prompts[0] + [[6, 7]] * num_prompts[1]
    requests = requests_for(prompts, SamplingParams(max_new_tokens=8, seed=3), group_size=4)
    share = -(-len(requests) // num_engines)

    def makespan(order: Sequence[int]) -> int:
        counter = own_counter()
        queues = [RequestQueue(requests, counter, share, 32, order) for _ in range(num_engines)]
        taken = [queue.take(0) for queue in queues]
        assert sorted(place for places in taken for place in places) == [*range(len(requests))]
        return max(sum(len(requests[place].prompt_ids) + 8 for place in places) for places in taken)

    mean = sum(len(request.prompt_ids) + 8 for request in requests) / num_engines
    assert makespan(dealt(requests, share)) <= 1.05 * mean < 1.3 * mean < makespan(())
