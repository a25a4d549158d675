"""Schedules over random layouts: complete, without a byte too many, within the bucket, and evenly spread."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest

from rl_compat.resharding.layout import Box, Division, Placement, RankMesh, WeightSpec, num_elements, whole
from rl_compat.resharding.schedule import Bucket, schedule

BUCKET = 2048


def indices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


def carry_out(
    buckets: tuple[Bucket, ...],
    weights: list[WeightSpec],
    source: dict[str, Placement],
    target: dict[str, Placement],
) -> Counter[tuple[int, int]]:
    """Check that every target is complete; returns the bytes between each two ranks."""
    specs = {weight.name: weight for weight in weights}
    arrived = {
        (name, rank): np.zeros(specs[name].shape, dtype=int)
        for name, place in target.items()
        for rank in place.mesh.ranks
    }
    sent: Counter[tuple[int, int]] = Counter()
    for bucket in buckets:
        for move in (*bucket.moves, *bucket.copies):
            shape = specs[move.weight].shape
            held = source[move.weight].box(shape, move.source)
            inside = all(a <= c and d <= b for (a, b), (c, d) in zip(held, move.box, strict=True))
            assert inside, "a rank sends only what it has"
            for rank in move.targets:
                arrived[move.weight, rank][indices(move.box)] += 1
                if rank != move.source:
                    sent[move.source, rank] += num_elements(move.box) * specs[move.weight].itemsize
                    if rank in source[move.weight].mesh.ranks:
                        own = np.zeros(shape, dtype=bool)
                        own[indices(source[move.weight].box(shape, rank))] = True
                        assert not own[indices(move.box)].any(), "a rank gets nothing that it has"
        for group in bucket.groups:
            for move in bucket.moves:
                assert move.source not in group or {move.source, *move.targets} == set(group)
    for (name, rank), counts in arrived.items():
        expected = np.zeros_like(counts)
        expected[indices(target[name].box(specs[name].shape, rank))] = 1
        assert (counts == expected).all(), f"`{name}` on rank {rank}"
    return sent


def check_memory(buckets: tuple[Bucket, ...], ranks: set[int]) -> None:
    for bucket in buckets:
        for rank in ranks:
            assert bucket.buffer_bytes(rank) <= BUCKET
            moves = [move for moves in bucket.messages(rank).values() for move in moves]
            carried = sum(move.buffer_bytes for move in moves)
            assert carried <= bucket.buffer_bytes(rank), "the buffer holds all that a rank sends and receives"
            assert sum(move.buffer_bytes for move in bucket.copies if move.source == rank) <= BUCKET


def random_mesh(rng: random.Random) -> RankMesh:
    sizes = {"replica": rng.choice([1, 1, 2]), "data": rng.choice([1, 2, 3, 4]), "tensor": rng.choice([1, 1, 2])}
    return RankMesh(tuple(sizes.items()), tuple(rng.sample(range(20), math.prod(sizes.values()))))


def random_placement(rng: random.Random, mesh: RankMesh, num_dims: int) -> Placement:
    axes = [axis for axis in ("data", "tensor") if num_dims and rng.random() < 0.7]
    rng.shuffle(axes)
    return Placement(mesh, tuple(Division(axis, rng.randrange(num_dims)) for axis in axes))


def random_weight(rng: random.Random, number: int) -> WeightSpec:
    shape = tuple(rng.choice([1, 2, 3, 5, 8, 13]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3])))
    return WeightSpec(f"weight.{number}", shape, rng.choice([1, 2, 4]))


@pytest.mark.parametrize("seed", range(60))
def test_every_target_is_complete_and_no_byte_moves_twice_or_for_nothing(seed: int) -> None:
    rng = random.Random(seed)
    meshes = random_mesh(rng), random_mesh(rng)
    weights = [random_weight(rng, number) for number in range(rng.randrange(1, 8))]
    source, target = (
        {weight.name: random_placement(rng, mesh, len(weight.shape)) for weight in weights} for mesh in meshes
    )
    buckets = schedule(weights, source, target, bucket_bytes=BUCKET)
    carry_out(buckets, weights, source, target)
    check_memory(buckets, {*meshes[0].ranks, *meshes[1].ranks})


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 7, 16])
def test_shards_of_all_ranks_are_gathered_in_few_collectives(num_ranks: int) -> None:
    mesh = RankMesh.line(range(num_ranks))
    shapes = [(33, 8), (8,), (5, 8), (8, 3), (1,)]
    weights = [WeightSpec(f"weight.{n}", shape, 4) for n, shape in enumerate(shapes)]
    source = {weight.name: Placement(mesh, (Division("data", 0),)) for weight in weights}
    target = whole(source, mesh)
    buckets = schedule(weights, source, target, bucket_bytes=2**14)
    sent = carry_out(buckets, weights, source, target)
    assert len(buckets) == 1
    assert buckets[0].groups == ((tuple(range(num_ranks)),) if num_ranks > 1 else ())
    assert sum(sent.values()) == (num_ranks - 1) * sum(weight.num_bytes for weight in weights)


def test_replicas_gather_among_themselves() -> None:
    mesh = RankMesh((("replica", 2), ("data", 4)), tuple(range(8)))
    weights = [WeightSpec("weight", (64, 4), 4)]
    source = {"weight": Placement(mesh, (Division("data", 0),))}
    target = whole(source, mesh)
    buckets = schedule(weights, source, target, bucket_bytes=BUCKET)
    sent = carry_out(buckets, weights, source, target)
    assert [bucket.groups for bucket in buckets] == [((0, 1, 2, 3), (4, 5, 6, 7))]
    assert all(one // 4 == other // 4 for one, other in sent)


@pytest.mark.parametrize("num_targets", [1, 2, 3, 4, 8])
def test_replicas_share_what_another_pool_needs(num_targets: int) -> None:
    here, there = RankMesh.line(range(4), "replica"), RankMesh.line(range(10, 10 + num_targets))
    weights = [WeightSpec(f"weight.{n}", (16, 16), 4) for n in range(8)] + [WeightSpec("embedding", (300, 16), 4)]
    names = [weight.name for weight in weights]
    buckets = schedule(weights, whole(names, here), whole(names, there), bucket_bytes=BUCKET)
    sent = carry_out(buckets, weights, whole(names, here), whole(names, there))
    by_source = [sum(num for (source, _), num in sent.items() if source == rank) for rank in range(4)]
    assert max(by_source) - min(by_source) <= BUCKET
    assert sum(by_source) == num_targets * sum(weight.num_bytes for weight in weights)


def test_equal_layouts_move_nothing() -> None:
    mesh = RankMesh((("data", 4), ("tensor", 2)), tuple(range(8)))
    weights = [WeightSpec("weight", (10, 6), 2)]
    layout = {"weight": Placement(mesh, (Division("tensor", 1), Division("data", 0)))}
    buckets = schedule(weights, layout, layout, bucket_bytes=BUCKET)
    assert [bucket.moves for bucket in buckets] == [()]
    assert carry_out(buckets, weights, layout, layout) == {}


def test_moves_follow_the_order_of_the_weights() -> None:
    mesh = RankMesh.line(range(4))
    weights = [WeightSpec(f"layers.{n}", (32, 8), 4) for n in range(12)]
    source = {weight.name: Placement(mesh, (Division("data", 0),)) for weight in weights}
    buckets = schedule(weights, source, whole(source, mesh), bucket_bytes=BUCKET)
    order = [move.weight for bucket in buckets for move in bucket.moves]
    assert [bucket.moves[0].weight for bucket in buckets] == [f"layers.{n}" for n in range(0, 12, 2)]
    assert order == sorted(order, key=lambda name: int(name.partition(".")[2]))
