"""Weights that reach another pool through a store: changes, damage, and rollouts that fail in the middle."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from fakes.engines import load_settings, role_plan
from fakes.handover_ranks import equal, own_model, session, tokens
from torch import Tensor, nn

from rl_compat.errors import ModelError
from rl_compat.models.load import load_causal_lm
from rl_compat.models.lora import LoraSettings
from rl_compat.resharding.checksum import checksum
from rl_compat.resharding.publish import PublishedWeights, StoreSource, WeightPublisher
from rl_compat.resharding.sharded import ShardedSource
from rl_compat.resharding.source import WeightReceiver
from rl_compat.resharding.store import FileStore, MemoryStore, WeightStore


class Pool:
    """A policy that publishes, and one rollout elsewhere."""

    def __init__(self, policy: nn.Module, store: WeightStore, *, dtype: torch.dtype = torch.float32) -> None:
        self.policy = policy
        self.source = ShardedSource(policy, version=0)
        dtypes = dict.fromkeys(self.source.shapes(), dtype)
        self.publisher = WeightPublisher(self.source, store, dtypes=dtypes, bucket_bytes=1024)

    def publish(self, *, version: int, num_changed: int = 0) -> PublishedWeights:
        """Change a few elements of every weight, and publish."""
        with torch.no_grad():
            for weight in self.policy.parameters():
                weight.view(-1)[:num_changed] += 0.25 + version
        return pickle.loads(pickle.dumps(self.publisher.publish(version=version)))


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 20), nn.LayerNorm(20))


def num_bytes(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> WeightStore:
    return MemoryStore() if request.param == "memory" else FileStore(tmp_path / "weights")


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_the_first_version_arrives_whole_and_later_ones_as_changes(store: WeightStore) -> None:
    pool, own = Pool(small(), store), small()
    source, receiver = StoreSource(store), WeightReceiver(own)
    received = []
    for version in range(1, 4):
        source.offer(pool.publish(version=version, num_changed=2))
        handover = receiver.receive(source)
        received.append(handover.received_bytes)
        assert same(own, pool.policy)
        assert (handover.version, source.version) == (version, version)
    assert received[0] >= num_bytes(own)
    assert max(received[1:]) < num_bytes(own) / 10


def test_a_rollout_that_missed_versions_or_starts_late_catches_up(store: WeightStore) -> None:
    pool, early, late = Pool(small(), store), small(), small()
    source, receiver = StoreSource(store), WeightReceiver(early)
    source.offer(pool.publish(version=1))
    receiver.receive(source)
    for version in range(2, 5):
        source.offer(pool.publish(version=version, num_changed=version))
    assert receiver.receive(source).received_bytes < num_bytes(early) / 4
    assert WeightReceiver(late).receive(source).received_bytes > num_bytes(late)
    assert same(early, pool.policy)
    assert same(late, pool.policy)


def test_storage_that_was_changed_by_someone_else_is_written_again(store: WeightStore) -> None:
    pool, own = Pool(small(), store), small()
    source, receiver = StoreSource(store), WeightReceiver(own)
    source.offer(pool.publish(version=1))
    receiver.receive(source)
    with torch.no_grad():
        own[0].weight[7, 7] += 1e-3
    source.offer(pool.publish(version=2, num_changed=1))
    assert receiver.receive(source).received_bytes > num_bytes(own)
    assert same(own, pool.policy)


def test_the_store_keeps_a_bounded_number_of_versions() -> None:
    store = MemoryStore()
    pool, own = Pool(small(), store), small()
    source, receiver = StoreSource(store), WeightReceiver(own)
    for version in range(1, 12):
        source.offer(pool.publish(version=version, num_changed=500))
        receiver.receive(source)
        assert same(own, pool.policy)
        assert sum(data.numel() for data in store._kept.values()) < 4.5 * num_bytes(own)
    pool.publisher.close()
    assert store._kept == {}


def test_lost_and_short_buckets_are_refused(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    pool, source = Pool(small(), store), StoreSource(store)
    source.offer(pool.publish(version=1))
    file = next(tmp_path.glob("*.bin"))
    file.write_bytes(file.read_bytes()[:-16])
    with pytest.raises(ModelError):
        WeightReceiver(small()).receive(source)
    file.unlink()
    with pytest.raises(ModelError):
        WeightReceiver(small()).receive(source)


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    pool, source = Pool(small(), store), StoreSource(store)
    source.offer(pool.publish(version=1))
    file = next(tmp_path.glob("*.bin"))
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)
    with pytest.raises(ModelError):
        WeightReceiver(small()).receive(source)


def test_weights_are_published_in_the_dtype_of_the_rollout() -> None:
    store = MemoryStore()
    pool, own, wide = Pool(small(), store, dtype=torch.bfloat16), small().bfloat16(), small()
    source = StoreSource(store)
    source.offer(pool.publish(version=1))
    for rollout in (own, wide):
        handover = WeightReceiver(rollout).receive(source)
        assert handover.full_bytes == num_bytes(own)
        expected = [weight.bfloat16().to(weight.dtype) for weight in pool.policy.parameters()]
        assert all(torch.equal(a.float(), b) for a, b in zip(rollout.parameters(), expected, strict=True))
    exact = Pool(small(), store)
    source.offer(exact.publish(version=2))
    with pytest.raises(ModelError):
        WeightReceiver(own).receive(source)


def test_a_source_in_a_store_is_an_iterator_of_whole_weights() -> None:
    store = MemoryStore()
    pool, source = Pool(small(), store), StoreSource(store)
    source.offer(pool.publish(version=3))
    expected = dict(pool.policy.named_parameters())
    weights = list(source)
    assert [weight.name for weight in weights] == list(expected)
    assert all(torch.equal(weight.tensor, expected[weight.name]) and weight.version == 3 for weight in weights)


def test_of_a_policy_with_adapters_the_base_is_published_once(llama_folder: Path) -> None:
    lora = LoraSettings(rank=2, alpha=4.0, dropout=0.0, targets=("q_proj",))
    store = MemoryStore()
    pool = Pool(load_causal_lm(load_settings(llama_folder, role=role_plan(), lora=lora)), store)
    own = own_model(llama_folder, lora=lora)
    source, receiver = StoreSource(store), WeightReceiver(own)
    received = []
    for version in range(1, 4):
        with torch.no_grad():
            for name, weight in pool.policy.named_parameters():
                weight += 0.125 * ("lora_" in name)
        source.offer(pool.publish(version=version))
        received.append(receiver.receive(source).received_bytes)
        assert equal(own, dict(pool.policy.named_parameters()))
    adapters = sum(p.nbytes for name, p in own.named_parameters() if "lora_" in name)
    assert received[0] >= num_bytes(own)
    assert max(received[1:]) < 2 * adapters


class Flaky:
    """A store that loses the connection after some buckets."""

    def __init__(self, store: WeightStore) -> None:
        self._store = store
        self.breaks_after: int | None = None

    def put(self, data: Tensor) -> object:
        return self._store.put(data)

    def get(self, key: object) -> Tensor:
        if self.breaks_after is not None:
            self.breaks_after -= 1
            if self.breaks_after < 0:
                raise ConnectionError("the store is gone")
        return self._store.get(key)

    def drop(self, keys: Sequence[object]) -> None:
        self._store.drop(keys)


def test_of_two_rollouts_the_one_that_fails_keeps_its_version_and_generates_nothing(llama_folder: Path) -> None:
    """ASYNC-02"""
    store = MemoryStore()
    pool = Pool(own_model(llama_folder), store)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in pool.policy.parameters():
            weight.normal_(std=0.2)
    flaky = Flaky(store)
    sources = [StoreSource(store), StoreSource(flaky)]
    engines = [session(own_model(llama_folder)) for _ in sources]

    def load(published: PublishedWeights) -> list[int]:
        for source, engine in zip(sources, engines, strict=True):
            source.offer(published)
            try:
                engine.load(source)
            except ConnectionError:
                assert engine is engines[1]
        return [engine.policy_version for engine in engines]

    assert load(pool.publish(version=4)) == [4, 4]
    first = [tokens(engine) for engine in engines]
    assert first[0] == first[1]

    fifth = pool.publish(version=5, num_changed=10**6)
    flaky.breaks_after = 20
    assert load(fifth) == [5, 4]
    assert {version for _, versions in tokens(engines[0]) for version in versions} == {5}
    with pytest.raises(ModelError):
        tokens(engines[1])
    with pytest.raises(ModelError):
        engines[1].step()

    flaky.breaks_after = None
    assert load(fifth) == [5, 5]
    second = [tokens(engine) for engine in engines]
    assert second[0] == second[1] != first[0]
    assert load(pool.publish(version=6)) == [6, 6], "nothing changed, and the checksum says so"
    assert [ids for ids, _ in tokens(engines[0])] == [ids for ids, _ in second[0]]


@pytest.mark.parametrize("shape", [(), (7,), (5, 6), (3, 4, 5)])
def test_checksums_of_parts_add_up_and_see_every_change(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    weight = torch.randn(shape)
    box = tuple((0, size) for size in shape)
    total = checksum(weight, name="weight", shape=shape, box=box)
    if shape:
        parts = [
            checksum(part, name="weight", shape=shape, box=(*box[:-1], (start, start + part.shape[-1])))
            for start, part in ((0, weight[..., :2]), (2, weight[..., 2:]))
        ]
        assert sum(parts) % 2**64 == total
    for place in range(weight.numel()):
        changed = weight.clone()
        changed.view(-1)[place] *= 1 + 1e-6
        assert checksum(changed, name="weight", shape=shape, box=box) != total
    if weight.numel() > 1:
        assert checksum(weight.flip(0), name="weight", shape=shape, box=box) != total
    assert checksum(weight, name="other", shape=shape, box=box) != total
    assert checksum(copy.deepcopy(weight), name="weight", shape=shape, box=box) == total
